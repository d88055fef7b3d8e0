"""Verbs over whole topics. Their work is in `topics.spark.jobs`; here are options, progress and results.

spark_job   what the verbs share: options, a quiet session, progress, signals
archive     `topics archive`
replay      `topics replay`
verify      `topics verify`: in this process, or on Spark if asked
stats       `topics stats`: the same
pipeline    `topics pipeline init` and `run`

Nothing of PySpark is imported before a verb runs: `topics --help` works without Spark.
"""
