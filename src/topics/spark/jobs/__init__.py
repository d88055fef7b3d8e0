"""Jobs over whole topics (`docs/spec/pipeline.md#sec-7`), and pipeline projects.

Each is a function of plain values that runs on a Spark session (`verify` and `stats` also without one), tells its
progress to a `Reporter`, and remembers what it has finished, so that a second start resumes.

job             what jobs share: source, progress, ledger of finished work, the sentence behind a failure
archive         topics into a table by topic and date, exactly once
archive_files   the folder of an archive: commits of Spark and of Delta, manifest, lock
replay          an archive, or any table, back into topics
verify          every frame of a data directory, checked as recovery would
stats           counts, sizes and times by topic and tag
project         a folder for Spark Declarative Pipelines, generated and run

Never delete from a topic what is not committed, described and synced elsewhere.
"""
