"""What was rendered of records in memory, kept for the next who want the same (`docs/spec/delivery.md#sec-11`).

    RenderCache   pages: texts of 128 records that lie side by side, of all topics. For diffs, and for streams that
                  catch up in memory
    TopicBodies   single records near the head of one watched topic, for its watchers, who stand at different places
                  and hide different records

Always holds: what is kept equals what rendering gives, byte for byte; each cache has a bound in bytes. Which records a
reader may see was decided before. Records in memory never change, so neither does their text: nothing is invalidated.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from threading import Lock
from typing import NamedTuple
from weakref import WeakSet, ref

from topics import limits
from topics.model.run import BODY_HEAD, RecordRun, RunSource
from topics.wire.outgoing.records import View, render_list, render_runs

BLOCK = 128
PAGE_RECORDS = BLOCK // 2  # of fewer records nothing is kept
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
    """Pages: kept in blocks of 128 records with the source they were cut from, and gone with it; all together take at
    most `bytes_max`, the oldest out first. The loop and threads may ask at the same time."""

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
        key = first << 3 | variant_of(view)
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


# --- single records ---------------------------------------------------------------------------------------------------

TOPIC_BODIES_BYTES_MAX = 8 * limits.MIB
"""All bodies of a topic together; the lowest seqs make room. The contract bounds seqs, but a record can be large."""

BODIES_BYTES_MAX = 64 * limits.MIB
"""All bodies of all topics; as much as the records they are made of have in memory."""

Variants = list[bytes | None]


class BodyPool:
    """Bounds the bodies of all topics: those of the topic that rendered longest ago go first. One for each server, used
    on its thread alone.

    `_bytes` is never too low: what goes with its topic is found out when the bound seems to be reached."""

    def __init__(self, bytes_max: int = BODIES_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._turn = 0
        self._caches: WeakSet[TopicBodies] = WeakSet()

    def __len__(self) -> int:
        return len(self._caches)

    def add(self, cache: TopicBodies) -> None:
        self._caches.add(cache)

    def grown(self, cache: TopicBodies, size: int) -> None:
        self._turn = cache.turn = self._turn + 1
        self._bytes += size
        if self._bytes > self._bytes_max:
            self._make_room()

    def _make_room(self) -> None:
        """A quarter is freed at a time: then looking at all of them is rare, however many there are."""
        caches = sorted(self._caches, key=lambda cache: cache.turn)
        self._bytes = sum(cache.bytes for cache in caches)
        if self._bytes <= self._bytes_max:
            return
        excess = self._bytes - self._bytes_max * 3 // 4
        for cache in caches:
            freed = cache.free(excess)
            self._bytes -= freed
            excess -= freed
            if excess <= 0:
                break


class TopicBodies:
    """Single records of one topic: at most `seqs_max` seqs, the highest ones, in eight variants each. A reader that
    lags behind them renders for itself and adds nothing. Kept by `Watched`, gone with its last watcher."""

    __slots__ = (
        "__weakref__",
        "_by_seq",
        "_bytes_max",
        "_pool",
        "_seqs",
        "_seqs_max",
        "bytes",
        "rendered_total",
        "turn",
    )

    def __init__(
        self, pool: BodyPool, *, seqs_max: int = limits.RENDER_CACHE_SEQS, bytes_max: int = TOPIC_BODIES_BYTES_MAX
    ) -> None:
        self._seqs_max = seqs_max
        self._bytes_max = bytes_max
        self._pool = pool
        self.turn = 0
        """Of the pool, when it rendered last."""
        pool.add(self)
        self._by_seq: dict[int, Variants] = {}
        self._seqs: list[int] = []  # ascending
        self.bytes = 0
        self.rendered_total = 0

    def __len__(self) -> int:
        return len(self._seqs)

    def render(self, run: RecordRun, view: View) -> list[bytes]:
        """Every record of the run as JSON; what is new is rendered once and kept."""
        variant = variant_of(view)
        by_seq, seqs = self._by_seq, seqs_of(run)
        bodies = [None if (known := by_seq.get(seq)) is None else known[variant] for seq in seqs]
        missing = [at for at, body in enumerate(bodies) if body is None]
        if missing:
            picks = None if len(missing) == len(bodies) else missing
            before = self.bytes
            for at, body in zip(missing, render_list(run, picks, view), strict=True):
                bodies[at] = body
                self._keep(seqs[at], variant, body)
            self.rendered_total += len(missing)
            self._shrink()
            self._pool.grown(self, self.bytes - before)
        return bodies  # type: ignore[return-value]  # none is missing any more

    def _keep(self, seq: int, variant: int, body: bytes) -> None:
        known = self._by_seq.get(seq)
        if known is None:
            if len(self._seqs) >= self._seqs_max and seq < self._seqs[0]:
                return
            known = self._by_seq[seq] = [None] * limits.RENDER_VARIANTS
            if not self._seqs or seq > self._seqs[-1]:
                self._seqs.append(seq)
            else:
                self._seqs.insert(bisect_left(self._seqs, seq), seq)
        known[variant] = body
        self.bytes += len(body)

    def _shrink(self) -> None:
        drop = max(len(self._seqs) - self._seqs_max, 0)
        for seq in self._seqs[:drop]:
            self._forget(seq)
        del self._seqs[:drop]
        if self.bytes > self._bytes_max:
            self.free(self.bytes - self._bytes_max)

    def free(self, wanted: int) -> int:
        """Give up the lowest seqs until so many bytes are free, or none are left; how many are."""
        before, drop = self.bytes, 0
        while drop < len(self._seqs) and before - self.bytes < wanted:
            self._forget(self._seqs[drop])
            drop += 1
        del self._seqs[:drop]
        return before - self.bytes

    def _forget(self, seq: int) -> None:
        self.bytes -= sum(len(body) for body in self._by_seq.pop(seq) if body is not None)


def variant_of(view: View) -> int:
    return view.data | view.tags << 1 | view.meta << 2


def seqs_of(run: RecordRun) -> list[int]:
    buf, unpack = run.buf, BODY_HEAD.unpack_from
    return [unpack(buf, off)[0] for off in run.body_offs]
