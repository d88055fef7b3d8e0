"""crash_states.py [--states N] [--seconds S] [--dir PATH] [--processes P]: crash states beyond those of `make test`.

Every workload of `tests/crash` again, with finer tears and with other chances in each round. What was judged is kept in
PATH, so a run goes on where the last one stopped: a state counts once, however many runs there were. Ends after S
seconds, or when N states have been judged in all; with status 1 at the first state that breaks a promise."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.crash.every import ALL, BY_NAME  # noqa: E402
from tests.crash.judging import Judge, collecting_rarely, distinct_states, fingerprint, noted  # noqa: E402

FINENESS = 24
"""Of the first round; the second one is twice as fine, and so on."""
PRINT_BYTES = 16
PIECE_SECONDS = 300.0
"""A workload gives way to the next one after so much processor time; it goes on in the next round."""
SAVE_EVERY = 2000


class Judged:
    """The states of one workload that were judged, by fingerprint, and the round it is in."""

    def __init__(self, folder: Path, name: str) -> None:
        self._prints = folder / f"{name}.states"
        self._round = folder / f"{name}.round"
        data = self._prints.read_bytes() if self._prints.exists() else b""
        whole = len(data) // PRINT_BYTES * PRINT_BYTES  # a run that was killed may have left half of one
        self.met = {data[at : at + PRINT_BYTES] for at in range(0, whole, PRINT_BYTES)}
        self.number = int(self._round.read_text()) if self._round.exists() else 1

    def add(self, prints: list[bytes]) -> None:
        whole = self._prints.stat().st_size // PRINT_BYTES * PRINT_BYTES if self._prints.exists() else 0
        with open(self._prints, "ab") as file:
            file.truncate(whole)
            file.write(b"".join(prints))

    def next_round(self) -> None:
        self.number += 1
        self._round.write_text(str(self.number))


def judged_in_all(folder: Path) -> int:
    return sum(path.stat().st_size // PRINT_BYTES for path in folder.glob("*.states"))


def work(task: tuple[str, str, float]) -> int:
    """Judge states of one workload until its time is up, or all; how many."""
    name, folder, end_s = task
    until_s = time.process_time() + PIECE_SECONDS
    logging.disable(logging.ERROR)
    workload, judged = BY_NAME[name], Judged(Path(folder), name)
    judge = Judge(workload)
    found: list[bytes] = []
    count, is_over = 0, False
    states = distinct_states(workload, seed=judged.number, fineness=FINENESS * judged.number, met=judged.met)
    try:
        for count, state in enumerate(collecting_rarely(states), 1):
            known = fingerprint(state)
            with noted(f"workload {name}, round {judged.number}, state {count}: {state}"):
                judge(state, count)
            found.append(known)
            if len(found) == SAVE_EVERY:
                judged.add(found)
                found.clear()
            is_over = time.process_time() > until_s or time.monotonic() > end_s
            if is_over:
                break
    finally:
        judged.add(found)
    if not is_over:
        judged.next_round()
    return count


def next_names(folder: Path, count: int) -> list[str]:
    """The workloads that are in the lowest round: it brings more states that are new than any later one."""
    rounds = {path.stem: int(path.read_text()) for path in folder.glob("*.round")}
    sizes = {path.stem: path.stat().st_size for path in folder.glob("*.states")}
    names = (workload.name for workload in ALL)
    return sorted(names, key=lambda name: (rounds.get(name, 1), sizes.get(name, 0)))[:count]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=2_000_000)
    parser.add_argument("--seconds", type=float, default=0.0, help="0: until there are as many states")
    parser.add_argument("--dir", default=str(ROOT / ".crash-states"))
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    folder = Path(given.dir)
    folder.mkdir(exist_ok=True)
    begin_s = time.monotonic()
    end_s = begin_s + given.seconds if given.seconds else float("inf")
    before = judged_in_all(folder)
    workers = given.processes
    with get_context("spawn").Pool(workers) as pool:
        while time.monotonic() < end_s and judged_in_all(folder) < given.states:
            batch = [(name, str(folder), end_s) for name in next_names(folder, 4 * workers)]
            pool.map(work, batch, chunksize=1)
            print(f"{judged_in_all(folder)} of {given.states} crash states judged", flush=True)
    seconds = time.monotonic() - begin_s
    print(f"{judged_in_all(folder) - before} of them in {seconds:.0f} s, with {workers} processes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
