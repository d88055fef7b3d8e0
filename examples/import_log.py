"""Imports lines as fast as they come: a batching producer with delivery reports.

python examples/import_log.py http://127.0.0.1:4000 access.log
python examples/import_log.py http://127.0.0.1:4000               makes lines of its own
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import topics
from topics.client.producing.batching import Delivery

GENERATED_LINES = 20_000


def lines(path: str | None) -> Iterator[str]:
    if path is None:
        yield from (f"GET /item/{number % 97} 200 {number % 500}ms" for number in range(GENERATED_LINES))
        return
    with open(path, encoding="utf-8", errors="replace") as file:
        yield from (line.rstrip("\n") for line in file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:4000")
    parser.add_argument("file", nargs="?")
    given = parser.parse_args()
    refused: list[Delivery] = []

    def report(delivery: Delivery) -> None:
        """Called for every record, on the producer's thread, once its fate is known."""
        if delivery.error is not None:
            refused.append(delivery)

    start, count = time.monotonic(), 0
    with topics.connect(given.url) as client, client.topic("access").producer(linger_ms=5) as producer:
        for line in lines(given.file):
            producer.append({"line": line}, tag=line.partition(" ")[0], report=report)
            count += 1
        producer.flush()
    print(f"{count - len(refused)} lines in {time.monotonic() - start:.2f} s, {len(refused)} refused")


if __name__ == "__main__":
    main()
