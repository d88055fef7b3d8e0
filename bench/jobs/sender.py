"""Sender: the process of `bench_jobs.py` that enqueues, for one system: `python sender.py MODULE`.

Reads one command per line (JSON) and answers each with one line. The module has `send_one(sent, gate)` and
`send_many(arguments)`, the system's own call for several jobs where it has one, and may have `open_queue()`."""

from __future__ import annotations

import importlib
import json
import random
import sys
import time
from typing import Any

import marks


def send_one_by_one(system: Any, count: int) -> dict[str, float]:
    began = time.perf_counter()
    for _ in range(count):
        system.send_one(time.time(), False)
    return {"seconds": time.perf_counter() - began}


def send_many(system: Any, count: int, gate: bool = False) -> dict[str, float]:
    began = time.perf_counter()
    system.send_many([(time.time(), gate)] * count)
    return {"seconds": time.perf_counter() - began}


def wake(system: Any, count: int, most_s: float, pause_s: float) -> dict[str, list[float]]:
    """One job at a time to an idle worker: seconds from the call that sends it to the first line of its function."""
    first = marks.mark_count()
    deadline = time.monotonic() + most_s
    sent = 0
    while sent < count and time.monotonic() < deadline:
        time.sleep(random.uniform(0.005, pause_s))  # the worker is idle again, at any moment of its polling
        system.send_one(time.time(), False)
        sent += 1
        while marks.mark_count() < first + sent:
            time.sleep(0.001)
    return {"spans": marks.last_marks(sent)}


def main() -> None:
    system: Any = importlib.import_module(sys.argv[1])
    if hasattr(system, "open_queue"):
        system.open_queue()
    commands = {"one": send_one_by_one, "many": send_many, "wake": wake}
    print("ready", flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(commands[name](system, *arguments)), flush=True)


if __name__ == "__main__":
    main()
