"""Job fields: what a write said about jobs that were never handed out, and unique keys
(`docs/spec/semantics.md#sec-16-11`).

    JobFields   times and priorities by seq, in typed arrays: 17 bytes a job, so that a million delayed ones are cheap
    UniqueKeys  which job stands for a key, and until when

Rows are in order of seq. A row dies when its job is handed out or gone; dead rows are dropped together.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import takewhile
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

_DEAD: Final = -128
_SLACK: Final = 1024  # dead rows that are kept beyond as many as are alive


class FieldRow(NamedTuple):
    """`ready_at` is 0 for a job on the line."""

    ready_at: int
    priority: int


class JobFields:
    __slots__ = ("_priority", "_ready_at", "_seqs", "count")

    def __init__(self) -> None:
        self._seqs: array[int] = array("Q")
        self._ready_at: array[int] = array("Q")
        self._priority: array[int] = array("b")
        self.count = 0  # rows alive

    def __contains__(self, seq: int) -> bool:
        return self._find(seq) >= 0

    def _find(self, seq: int) -> int:
        seqs = self._seqs
        if not seqs or seq > seqs[-1]:
            return -1
        at = bisect_left(seqs, seq)
        return at if seqs[at] == seq and self._priority[at] != _DEAD else -1

    def get(self, seq: int) -> FieldRow | None:
        at = self._find(seq)
        return None if at < 0 else FieldRow(self._ready_at[at], self._priority[at])

    def add(self, seq: int, ready_at: int, priority: int) -> bool:
        """False: there is such a row."""
        seqs = self._seqs
        if not seqs or seq > seqs[-1]:
            seqs.append(seq)
            self._ready_at.append(ready_at)
            self._priority.append(priority)
        else:  # only in recovery
            at = bisect_left(seqs, seq)
            if seqs[at] == seq and self._priority[at] != _DEAD:
                return False
            if seqs[at] != seq:
                seqs.insert(at, seq)
                self._ready_at.insert(at, 0)
                self._priority.insert(at, 0)
            self._ready_at[at] = ready_at
            self._priority[at] = priority
        self.count += 1
        return True

    def set_ready(self, seq: int) -> None:
        """Its delay is over."""
        at = self._find(seq)
        assert at >= 0, "a job without fields cannot become ready by them"
        self._ready_at[at] = 0

    def pop(self, seq: int) -> FieldRow | None:
        at = self._find(seq)
        if at < 0:
            return None
        row = FieldRow(self._ready_at[at], self._priority[at])
        self._priority[at] = _DEAD
        self.count -= 1
        if len(self._seqs) > 2 * self.count + _SLACK:
            self._compact()
        return row

    def _compact(self) -> None:
        kept = np.frombuffer(self._priority, np.int8) != _DEAD
        self._seqs = array("Q", np.frombuffer(self._seqs, np.uint64)[kept].tobytes())
        self._ready_at = array("Q", np.frombuffer(self._ready_at, np.uint64)[kept].tobytes())
        self._priority = array("b", np.frombuffer(self._priority, np.int8)[kept].tobytes())

    def below(self, seq: int) -> list[int]:
        """Seqs of rows in front of this one."""
        end = bisect_left(self._seqs, seq)
        return [self._seqs[at] for at in range(end) if self._priority[at] != _DEAD]

    def outside(self, seqs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Those of these seqs, ascending, that have no row."""
        if not self.count or not len(seqs) or int(seqs[0]) > self._seqs[-1]:
            return seqs
        lo, hi = bisect_left(self._seqs, int(seqs[0])), bisect_left(self._seqs, int(seqs[-1]) + 1)
        if lo == hi:
            return seqs
        rows = np.frombuffer(self._seqs, np.uint64)[lo:hi]
        alive = rows[np.frombuffer(self._priority, np.int8)[lo:hi] != _DEAD]
        outside: npt.NDArray[np.int64] = seqs[~np.isin(seqs, alive.astype(np.int64), assume_unique=True)]
        return outside

    def rows(self, after: int = 0) -> Iterator[tuple[int, int, int]]:
        """Seq, ready_at and priority, ascending, from behind `after` on."""
        for at in range(bisect_left(self._seqs, after + 1), len(self._seqs)):
            if self._priority[at] != _DEAD:
                yield self._seqs[at], self._ready_at[at], self._priority[at]

    # --- snapshots ------------------------------------------------------------------------------------------------

    def columns(self) -> tuple[bytes, bytes, bytes]:
        """Seqs, times and priorities as little-endian columns."""
        self._compact()
        return tuple(column.tobytes() for column in (self._seqs, self._ready_at, self._priority))  # type: ignore[return-value]

    @classmethod
    def from_columns(cls, seqs: bytes, ready_at: bytes, priority: bytes) -> JobFields:
        fields = cls()
        fields._seqs.frombytes(seqs)
        fields._ready_at.frombytes(ready_at)
        fields._priority.frombytes(priority)
        fields.count = len(fields._seqs)
        return fields

    def delayed(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Times and seqs of the rows that wait."""
        self._compact()
        times = np.frombuffer(self._ready_at, np.uint64)
        waits = times > 0
        return times[waits], np.frombuffer(self._seqs, np.uint64)[waits]

    def clear(self) -> None:
        self._seqs, self._ready_at, self._priority = array("Q"), array("Q"), array("b")
        self.count = 0


class UniqueKey(NamedTuple):
    """`until` is the first moment at which it stands no more; 0: it stands until its job is done."""

    seq: int
    until: int


class UniqueKeys:
    __slots__ = ("_by_seq", "_ends", "_keys", "staged")

    def __init__(self) -> None:
        self._keys: dict[str, UniqueKey] = {}
        self._by_seq: dict[int, str] = {}
        self._ends: list[tuple[int, str]] = []
        self.staged: set[str] = set()
        """Keys of writes that are being committed."""

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, key: str, now: int) -> UniqueKey | None:
        found = self._keys.get(key)
        return None if found is None or 0 < found.until <= now else found

    def key_of(self, seq: int) -> str | None:
        return self._by_seq.get(seq)

    def set(self, key: str, seq: int, until: int) -> None:
        before = self._keys.get(key)
        if before is not None:
            if before.seq > seq:
                return  # recovery: the key has moved on since
            self._by_seq.pop(before.seq, None)
        self._keys[key] = UniqueKey(seq, until)
        self._by_seq[seq] = key
        if until:
            heappush(self._ends, (until, key))
            if len(self._ends) > 2 * len(self._keys) + _SLACK:
                self._ends = [(found.until, key) for key, found in self._keys.items() if found.until]
                heapify(self._ends)

    def seqs(self) -> list[int]:
        """Jobs that have a key."""
        return list(self._by_seq)

    def seqs_below(self, seq: int) -> list[int]:
        """Jobs in front of this one that have a key; seqs ascend, because a key moves on only to a newer job."""
        return list(takewhile(lambda standing: standing < seq, self._by_seq))

    def job_gone(self, seq: int) -> None:
        key = self._by_seq.pop(seq, None)
        if key is not None and not self._keys[key].until:
            del self._keys[key]

    def forget(self, key: str) -> None:
        found = self._keys.pop(key, None)
        if found is not None:
            self._by_seq.pop(found.seq, None)

    def expire(self, now: int) -> None:
        while self._ends and self._ends[0][0] <= now:
            until, key = heappop(self._ends)
            found = self._keys.get(key)
            if found is not None and found.until == until:
                self.forget(key)

    def rows(self) -> list[tuple[str, int, int]]:
        return [(key, found.seq, found.until) for key, found in self._keys.items()]
