"""DueTimes: pairs of a time and a seq, earliest first, at 16 bytes a pair.

New pairs are in a heap; a full heap becomes a sorted run of two typed arrays, and so does a large batch. The earliest
pair is the smallest of the heap's and the runs' first ones. A pair cannot be removed: whoever takes it out looks
whether it still means something.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace

import numpy as np
import numpy.typing as npt

RUN_PAIRS = 4096
"""In the heap at most: sorting so many takes under a millisecond."""
BATCH_PAIRS = 64
"""From so many on a batch is sorted by itself."""


class _Run:
    __slots__ = ("at", "dues", "seqs")

    def __init__(self, dues: array[int], seqs: array[int]) -> None:
        self.dues = dues
        self.seqs = seqs
        self.at = 0


class DueTimes:
    __slots__ = ("_made", "_new", "_runs", "count")

    def __init__(self) -> None:
        self._new: list[tuple[int, int]] = []
        self._runs: list[tuple[int, int, _Run]] = []  # heap: first due time, number of the run
        self._made = 0
        self.count = 0

    def add(self, due: int, seq: int) -> None:
        heappush(self._new, (due, seq))
        self.count += 1
        if len(self._new) > RUN_PAIRS:
            self._new.sort()
            self._add_run(array("Q", [due for due, _ in self._new]), array("Q", [seq for _, seq in self._new]))
            self._new = []

    def extend(self, dues: Sequence[int], seqs: Sequence[int]) -> None:
        if len(dues) < BATCH_PAIRS:
            for due, seq in zip(dues, seqs, strict=True):
                self.add(due, seq)
        else:
            self.fill(np.array(dues, np.uint64), np.array(seqs, np.uint64))

    def fill(self, dues: npt.NDArray[np.uint64], seqs: npt.NDArray[np.uint64]) -> None:
        """As `extend`, for whole columns."""
        if len(dues):
            order = np.argsort(dues, kind="stable")
            self._add_run(array("Q", dues[order].tobytes()), array("Q", seqs[order].tobytes()))
            self.count += len(dues)

    def _add_run(self, dues: array[int], seqs: array[int]) -> None:
        self._made += 1
        heappush(self._runs, (dues[0], self._made, _Run(dues, seqs)))
        if len(self._runs) > RUN_PAIRS:
            self._join()

    def _join(self) -> None:
        """Very many small runs cost more than their pairs: make one of them."""
        runs = [run for _, _, run in self._runs]
        self._runs = []
        dues, seqs = (
            np.concatenate([np.frombuffer(column, np.uint64)[run.at :] for run, column in columns])
            for columns in ([(run, run.dues) for run in runs], [(run, run.seqs) for run in runs])
        )
        order = np.argsort(dues, kind="stable")
        self._add_run(array("Q", dues[order].tobytes()), array("Q", seqs[order].tobytes()))

    def first(self) -> tuple[int, int] | None:
        """The earliest pair."""
        if not self._runs:
            return self._new[0] if self._new else None
        due, _, run = self._runs[0]
        if self._new and self._new[0] <= (due, run.seqs[run.at]):
            return self._new[0]
        return due, run.seqs[run.at]

    def pop(self) -> None:
        """Take out the earliest pair."""
        first = self.first()
        if first is None:
            return
        self.count -= 1
        if self._new and self._new[0] == first:
            heappop(self._new)
            return
        _, number, run = self._runs[0]
        run.at += 1
        if run.at == len(run.dues):
            heappop(self._runs)
        else:
            heapreplace(self._runs, (run.dues[run.at], number, run))

    def replace(self, pairs: list[tuple[int, int]]) -> None:
        """Have these and no others."""
        self.clear()
        if len(pairs) < BATCH_PAIRS:
            self._new = pairs
            heapify(self._new)
            self.count = len(pairs)
        else:
            self.extend([due for due, _ in pairs], [seq for _, seq in pairs])

    def clear(self) -> None:
        self._new = []
        self._runs = []
        self.count = 0
