"""Rendered records near the head of watched topics, kept for their watchers, who stand at different places and hide
different records (`docs/spec/delivery.md#sec-11`).

Always holds: what is kept equals what rendering gives, byte for byte; there is a bound in bytes for each topic and for
all together. Which records a reader may see was decided before. Pages are not kept: they are rendered as fast as a kept
text would be found and joined.
"""

from __future__ import annotations

from bisect import bisect_left
from weakref import WeakSet

from topics import limits
from topics.model.run import BODY_HEAD, RecordRun
from topics.wire.outgoing.records import View, render

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
            for at, body in zip(missing, render(run, picks, view).each(), strict=True):
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
