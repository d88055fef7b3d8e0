"""One file as the order monitor sees it: which of its bytes a power cut could still take."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

END = 1 << 62  # behind every file


class Span(NamedTuple):
    """Bytes `lo..hi` changed at `stamp`."""

    lo: int
    hi: int
    stamp: int


def minus(spans: Iterable[Span], lo: int, hi: int) -> list[Span]:
    return [part for span in spans for part in _outside(span, lo, hi)]


def _outside(span: Span, lo: int, hi: int) -> Iterator[Span]:
    if span.lo < min(span.hi, lo):
        yield span._replace(hi=min(span.hi, lo))
    if max(span.lo, hi) < span.hi:
        yield span._replace(lo=max(span.lo, hi))


class Tracked:
    """What is known of one file, under whatever name it has now."""

    def __init__(self, path: str, *, fresh: bool) -> None:
        self.path = path
        self.reset(fresh=fresh)

    def reset(self, *, fresh: bool) -> None:
        self.unsynced: list[Span] = []
        self.doubtful: list[Span] = []  # part of a sync that failed
        self.unwiped: list[Span] = []  # where a write failed
        self.wipe_stamp = 0  # the last zeros written over `unwiped`; 0 when there is nothing to wipe
        self.cut_stamp = 0
        self.fsynced = False
        self.settled = fresh  # a log may be appended to
        self.read_to = 0  # marks are known up to here

    def clean(self) -> bool:
        return not self.unsynced and not self.doubtful

    def durable_to(self) -> int:
        return min((span.lo for span in (*self.unsynced, *self.doubtful)), default=END)
