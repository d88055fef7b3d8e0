"""The console over 10,000 topics and ten million records: first view, frames, memory, cost to an idle server.

    python bench/bench_console.py --prepare DIR     # writes the data directory; minutes
    python bench/bench_console.py --data DIR        # measures, and keeps the figures in bench/results/console.txt

Without arguments it prepares a smaller directory of its own and keeps nothing. Chromium runs without a window and
without a graphics card, on the machine of the server. First views are of new tabs, from the call to the first row of
the list; frames are those of 300 steps of 120 pixels, as the page's own clock sees them."""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

from report import Report

import topics

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.console.pages import Api, Console, ServerProcess, a_browser, wait_for

LARGE = "large"
BATCH = 2000
ROUNDS = 5
FRAMES = 300
RATE = 2000
STREAM_S = 20.0
IDLE_S = 20.0

SCROLL = f"""async (name) => {{
  const grid = document.querySelector(`[role=grid][aria-label=${{name}}]`);
  const times = [];
  let before = await new Promise(requestAnimationFrame);
  for (let frame = 0; frame < {FRAMES}; frame += 1) {{
    grid.scrollTop += 120;
    const now = await new Promise(requestAnimationFrame);
    times.push(now - before);
    before = now;
  }}
  return times;
}}"""


def prepare(folder: Path, names: int, records: int) -> None:
    with topics.open(folder / "data") as db:
        for number in range(names):
            db.topic(f"t{number:05d}").append(number)
        large = db.topic(LARGE)
        for start in range(0, records, BATCH):
            large.append_many([{"n": n} for n in range(start, start + BATCH)])


def first_views(report: Report, browser: Any, server: ServerProcess) -> None:
    for title, view, sign in (
        ("first view of the overview", "", "text=Log and checkpoints"),
        ("first view of all topics", "topics", "role=row >> text=t00000"),
        ("first view of the large topic", f"topics/{LARGE}", "role=grid[name=Records] >> role=row >> nth=5"),
    ):
        took = []
        for _ in range(ROUNDS):
            page = Console(browser, server)
            began = time.perf_counter()
            page.open(view)
            page.page.wait_for_selector(sign)
            took.append(time.perf_counter() - began)
            page.close()
        report.figure(f"{title}, median of {ROUNDS}", median(took), "s", at_most=1.0)
        report.figure("  worst of them", max(took), "s")


def scrolling(report: Report, browser: Any, server: ServerProcess) -> None:
    for title, view, name in (("topics", "topics", "Topics"), ("records", f"topics/{LARGE}", "Records")):
        page = Console(browser, server)
        page.open(view)
        page.page.wait_for_selector(f"role=grid[name={name}] >> role=row >> nth=5")
        session = page.context.new_cdp_session(page.page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        before = busy_s(session)
        frames = sorted(page.page.evaluate(SCROLL, name))
        used = busy_s(session) - before
        page.close()
        report.figure(f"scrolling {title}: processor time of a frame", used * 1000 / FRAMES, "ms", at_most=16.7)
        report.figure("  time of a frame, median", median(frames), "ms")
        report.figure("  time of a frame, 95 of 100 below", frames[int(0.95 * FRAMES)], "ms", at_most=33.4)


def busy_s(session: Any) -> float:
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return float(metrics["TaskDuration"])


def streaming(report: Report, browser: Any, server: ServerProcess) -> None:
    page = Console(browser, server)
    page.open(f"topics/{LARGE}")
    page.page.wait_for_selector("text=Live")
    session = page.context.new_cdp_session(page.page)
    over, written = threading.Event(), [0]

    def write() -> None:
        api = Api(server)
        due = time.perf_counter()
        while not over.wait(max(0.0, due - time.perf_counter())):
            api.write(LARGE, *({"data": {"n": n, "text": "y" * 80}, "tag": "live"} for n in range(RATE // 20)))
            written[0] += RATE // 20
            due += 0.05
        api.close()

    writer = threading.Thread(target=write)
    writer.start()
    heaps = []
    try:
        page.page.wait_for_selector("role=row >> text=live >> nth=0")
        wait_for(lambda: written[0] >= 3 * RATE)  # until then the list fills up to its bound
        began, before = time.perf_counter(), written[0]
        while (passed := time.perf_counter() - began) < STREAM_S:
            session.send("HeapProfiler.collectGarbage")
            heaps.append(int(session.send("Runtime.getHeapUsage")["usedSize"]) / 2**20)
            page.page.wait_for_timeout(1000)
        rate = (written[0] - before) / passed
    finally:
        over.set()
        writer.join()
        page.close()
    report.figure("records that streamed in", rate, "records/s", at_least=0.95 * RATE)
    report.figure("  heap of the page, first second", heaps[0], "MiB")
    report.figure(f"  highest of {STREAM_S:.0f} seconds", max(heaps), "MiB", at_most=heaps[0] + 10)


def idle(report: Report, browser: Any, server: ServerProcess) -> None:
    def core(seconds: float) -> float:
        began = server.cpu_seconds()
        time.sleep(seconds)
        return 100 * (server.cpu_seconds() - began) / seconds

    time.sleep(5.0)  # what the writes caused comes to rest
    report.figure("idle server, no console", core(IDLE_S), "% of a core")
    for title, view in (("overview", ""), ("topics", "topics")):
        page = Console(browser, server)
        page.open(view)
        page.page.wait_for_selector("role=row >> nth=1" if view else "text=Log and checkpoints")
        time.sleep(2.0)
        report.figure(f"the same with an open {title}", core(IDLE_S), "% of a core", at_most=1.0)
        page.close()


def measure(folder: Path, title: str) -> Report:
    report = Report("console", f"The console: {title}")
    server = ServerProcess(folder)
    server.start()
    try:
        with a_browser() as browser:
            for part in (first_views, scrolling, idle, streaming):
                part(report, browser, server)
    finally:
        server.stop()
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", type=Path)
    parser.add_argument("--data", type=Path)
    asked = parser.parse_args()
    if asked.prepare:
        prepare(asked.prepare, 10_000, 10_000_000)
    elif asked.data:
        measure(asked.data, "10,000 topics, and a topic of 10,000,000 records").save()
    else:
        with tempfile.TemporaryDirectory() as made:
            prepare(Path(made), 1000, 100_000)
            measure(Path(made), "1,000 topics, and a topic of 100,000 records")


if __name__ == "__main__":
    main()
