"""Idempotency window: which write keys a topic remembers, and for how long (`docs/spec/semantics.md#sec-13`).

Bounded by time only: a key leaves when its window is over, and `now` moves on with every look. A key whose write is
still being committed is `staged`; a second writer has to wait for it. What always holds: a hit answers with the first
write's numbers and never extends the window; a failed write leaves nothing.
"""

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec


class WriteMemo(msgspec.Struct, frozen=True, gc=False):
    """What the first write under a key was answered."""

    ts: int
    first_seq: int
    count: int
    head: int


class IdemWindow:
    __slots__ = ("_memos", "_order", "staged")

    def __init__(self) -> None:
        self._memos: dict[bytes, WriteMemo] = {}
        self._order: deque[tuple[int, bytes]] = deque()
        self.staged: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._memos)

    def find(self, key: bytes, *, now: int, window_ms: int) -> WriteMemo | None:
        self.expire(now=now, window_ms=window_ms)
        return self._memos.get(key)

    def remember(self, key: bytes, memo: WriteMemo) -> None:
        self._memos[key] = memo
        self._order.append((memo.ts, key))

    def expire(self, *, now: int, window_ms: int) -> None:
        """Forget keys whose window is over; a window of 0 remembers nothing."""
        order, memos = self._order, self._memos
        while order and (window_ms == 0 or now - order[0][0] > window_ms):
            ts, key = order.popleft()
            memo = memos.get(key)
            if memo is not None and memo.ts == ts:
                del memos[key]

    def forget_lost(self, lo: int, hi: int) -> None:
        """After a crash: a key some of whose records `lo..hi` did not come back must append afresh."""
        for key, memo in list(self._memos.items()):
            if memo.first_seq <= hi and memo.first_seq + memo.count > lo:
                del self._memos[key]

    def items(self) -> Iterator[tuple[bytes, WriteMemo]]:
        return iter(self._memos.items())

    @classmethod
    def restored(cls, entries: Iterable[tuple[bytes, WriteMemo]]) -> "IdemWindow":
        window = cls()
        for key, memo in sorted(entries, key=lambda entry: entry[1].ts):
            window.remember(key, memo)
        return window
