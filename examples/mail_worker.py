"""A worker of a queue: four jobs at a time, retries with growing pauses, and a place for jobs that never work.

python examples/mail_worker.py http://127.0.0.1:4000            goes on until SIGTERM or Ctrl-C
python examples/mail_worker.py http://127.0.0.1:4000 --once     stops when nothing is left

A job is acked when the function returns, and comes again when it raises: the function must tolerate a repeat.
"""

from __future__ import annotations

import argparse
import threading

import topics

JOBS = [{"to": f"user{number}@example.org"} for number in range(20)] + [{"to": "nobody"}]
sent: set[str] = set()
lock = threading.Lock()


def send(address: str) -> None:
    if "@" not in address:
        raise ValueError(f"{address!r} is no address")
    with lock:  # jobs run on several threads
        sent.add(address)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:4000")
    parser.add_argument("--once", action="store_true")
    given = parser.parse_args()
    with topics.connect(given.url) as client:
        mails = client.queue("mails.example", max_deliveries=3, retry={"base_ms": 20})
        mails.append_many(JOBS)

        @mails.worker(concurrency=4, until_empty=given.once)
        def work(job: topics.Job) -> None:
            send(job.value["to"])

        work.run()
        while given.once and mails.state().count:  # a failed job waits out its pause
            work.run()
        dead = sum(1 for _ in client.topic("mails.example.dead").read())
    print(f"{len(sent)} sent, {dead} in mails.example.dead")


if __name__ == "__main__":
    main()
