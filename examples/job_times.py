"""What became of the jobs of queues, by tag: throughput, and percentiles of wait and run time.

    python examples/job_times.py http://localhost:4000 history
    python examples/job_times.py /var/lib/topics history

The history is the topic that the queues name as `done` in their config. Wait is from the append to the first claim, run
from the last claim to the end, both in milliseconds; the rate is over the time from the first end to the last."""

from __future__ import annotations

import sys

import topics.spark

JOB_TIMES = """
WITH ends AS (
  SELECT tag, from_json(data, 'queue STRING, seq BIGINT, outcome STRING, appended_ts BIGINT, first_claimed_ts BIGINT,
                               claimed_ts BIGINT, done_ts BIGINT, deliveries INT') AS job
  FROM history
), jobs AS (
  SELECT DISTINCT tag, job.* FROM ends
)
SELECT queue, tag,
       count(*) AS jobs,
       count_if(outcome = 'failed') AS failed,
       count_if(outcome = 'cancelled') AS cancelled,
       round(avg(deliveries), 2) AS deliveries,
       round(count(*) * 1000 / greatest(max(done_ts) - min(done_ts), 1), 2) AS per_second,
       percentile_approx(first_claimed_ts - appended_ts, array(0.5, 0.95, 0.99)) AS wait_ms,
       percentile_approx(done_ts - claimed_ts, array(0.5, 0.95, 0.99)) AS run_ms
FROM jobs
GROUP BY queue, tag
ORDER BY queue, tag
"""


def main(where: str, history: str) -> None:
    spark = topics.spark.session()
    place = {"url": where} if where.startswith("http") else {"path": where}
    spark.read.format("topics").options(**place, subscribe=history).load().createOrReplaceTempView("history")
    spark.sql(JOB_TIMES).show(100, truncate=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
