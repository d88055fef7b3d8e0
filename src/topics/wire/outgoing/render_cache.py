"""Texts: records in memory as JSON, kept for the next readers of the same ones.

Records that lie in memory never change, so neither does their text. It is kept in blocks of 128 records with the source
they were cut from and goes with it; all texts together take at most `bytes_max`, the oldest out first. Always holds: a
text equals what `render_runs` gives, byte for byte. Which records a reader may see was decided before. Asked by diff;
loop and threads may ask at the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from threading import Lock
from typing import NamedTuple
from weakref import ref

from topics import limits
from topics.model.run import RecordRun, RunSource
from topics.wire.outgoing.records import View, render_list, render_runs

BLOCK = 128
BLOCK_BYTES_MAX = 256 * limits.KIB  # a longer text is rendered anew each time: few of them would push out all others


class RenderedText(NamedTuple):
    """Records joined by commas, and where each of them ends."""

    whole: bytes
    ends: list[int]

    def part(self, lo: int, hi: int) -> bytes:
        if lo == 0 and hi == len(self.ends):
            return self.whole
        return self.whole[self.ends[lo - 1] + 1 if lo else 0 : self.ends[hi - 1]]


class KeptText(NamedTuple):
    source: ref[RunSource]
    key: int
    size_bytes: int


class RenderCache:
    def __init__(self, *, bytes_max: int = limits.RENDER_TEXTS_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._order: deque[KeptText] = deque()
        self._changing = Lock()
        self.bytes = 0
        """Of all texts that were kept; those whose source has gone count until it is their turn."""

    def join(self, runs: Sequence[RecordRun], view: View) -> bytes:
        """All records of a read, joined by commas."""
        pieces: list[bytes] = []
        loose: list[RecordRun] = []  # neighbours that have no block
        for run in runs:
            for part in self._parts(run, view):
                if isinstance(part, bytes):
                    if loose:
                        pieces.append(render_runs(loose, view))
                        loose = []
                    pieces.append(part)
                else:
                    loose.append(part)
        if loose:
            pieces.append(render_runs(loose, view))
        return pieces[0] if len(pieces) == 1 else b",".join(pieces)

    def _parts(self, run: RecordRun, view: View) -> Iterator[bytes | RecordRun]:
        """The run, block by block: texts, and what no text is kept of."""
        source = run.source
        if source is None:
            yield run
            return
        at, end = run.source_at, run.source_at + len(run)
        while at < end:
            first = at - at % BLOCK
            stop = min(end, first + BLOCK)
            text = self._block(source, first, view, wanted=stop - at)
            yield source.cut(at, stop) if text is None else text.part(at - first, stop - first)
            at = stop

    def _block(self, source: RunSource, first: int, view: View, *, wanted: int) -> RenderedText | None:
        """The text of a block; None if it still grows, or if so little of it is wanted that the rest would be for
        nothing."""
        key = first << 3 | view.data | view.tags << 1 | view.meta << 2
        known: RenderedText | None = None if source.texts is None else source.texts.get(key)
        if known is not None:
            return known
        count = min(len(source.body_offs) - first, BLOCK)
        if wanted * 2 < count or (count < BLOCK and not isinstance(source.buf, bytes)):
            return None
        bodies = render_list(source.cut(first, first + count), None, view)
        text = RenderedText(b",".join(bodies), list(accumulate(map(len, bodies), lambda end, size: end + 1 + size)))
        if len(text.whole) <= BLOCK_BYTES_MAX:
            self._keep(source, key, text)
        return text

    def _keep(self, source: RunSource, key: int, text: RenderedText) -> None:
        with self._changing:
            if source.texts is None:
                source.texts = {}
            if source.texts.setdefault(key, text) is not text:
                return  # another thread was faster
            self._order.append(KeptText(ref(source), key, len(text.whole)))
            self.bytes += len(text.whole)
            while self.bytes > self._bytes_max:
                self._forget(self._order.popleft())

    def _forget(self, kept: KeptText) -> None:
        self.bytes -= kept.size_bytes
        source = kept.source()
        if source is not None and source.texts is not None:
            source.texts.pop(kept.key, None)
