"""Bodies: rendered records of one topic, shared by its watchers (delivery.md section 11).

Always holds: a shared body equals what a private rendering gives, byte for byte; at most 1024 seqs are kept, the
highest ones, in eight variants each; a reader that lags behind them renders for itself and adds nothing. Whether a
record may be sent at all is decided by the read before this is asked. Kept by `Watched`, gone with its last watcher."""

from __future__ import annotations

from bisect import bisect_left

from topics import limits
from topics.model.run import BODY_HEAD, RecordRun
from topics.wire.records import View, render_list

BYTES_MAX = 8 * limits.MIB
"""All bodies of a topic together; the lowest seqs make room. The contract bounds seqs, but a record can be large."""

Variants = list[bytes | None]


class Bodies:
    __slots__ = ("_by_seq", "_bytes", "_bytes_max", "_seqs", "_seqs_max", "rendered_total")

    def __init__(self, *, seqs_max: int = limits.RENDER_CACHE_SEQS, bytes_max: int = BYTES_MAX) -> None:
        self._seqs_max = seqs_max
        self._bytes_max = bytes_max
        self._by_seq: dict[int, Variants] = {}
        self._seqs: list[int] = []  # ascending
        self._bytes = 0
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
            for at, body in zip(missing, render_list(run, picks, view), strict=True):
                bodies[at] = body
                self._keep(seqs[at], variant, body)
            self.rendered_total += len(missing)
            self._shrink()
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
        self._bytes += len(body)

    def _shrink(self) -> None:
        drop = max(len(self._seqs) - self._seqs_max, 0)
        for seq in self._seqs[:drop]:
            self._forget(seq)
        while self._bytes > self._bytes_max:
            self._forget(self._seqs[drop])
            drop += 1
        del self._seqs[:drop]

    def _forget(self, seq: int) -> None:
        self._bytes -= sum(len(body) for body in self._by_seq.pop(seq) if body is not None)


def variant_of(view: View) -> int:
    return view.data | view.tags << 1 | view.meta << 2


def seqs_of(run: RecordRun) -> list[int]:
    buf, unpack = run.buf, BODY_HEAD.unpack_from
    return [unpack(buf, off)[0] for off in run.body_offs]


def nodes_of(run: RecordRun) -> list[bytes | None]:
    """Who wrote each record; None for records without a node."""
    return [record.node for record in run.records()]
