"""SSE frames of one batch: built once for all streams that send the same; ids are added per stream.

id: eyJpbnZvaWNlcyI6OH0      <- joined() puts it in front of each frame
event: record
data: {"topic":"invoices",...}
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable
from typing import Protocol

from topics.api.live.batches import Options, RenderedBatch
from topics.model.position import Position
from topics.wire.outgoing import sse
from topics.wire.outgoing.live_json import caught_up_json, record_json
from topics.wire.outgoing.sse import one_line

_URLSAFE = bytes.maketrans(b"+/", b"-_")


class FrameTarget(Protocol):
    """Who is sent frames: a subscription, or a group of them."""

    name: str
    at: int
    options: Options
    is_first_read: bool


class SseFrames:
    """Frames without their ids, empty where there is none. A tombstone's id stands at `gap_at`."""

    __slots__ = ("_alone", "_at", "_epoch", "_name", "caught_up", "count", "gap_at", "record", "tombstone")

    def __init__(self, batch: RenderedBatch, subscription: FrameTarget) -> None:
        outcome, name = batch.outcome, subscription.name
        self._name = name
        self._at = outcome.next_from_seq
        self._epoch = epoch = outcome.epoch
        self._alone: list[bytes | None] = [None, None]
        self.tombstone = self.record = b""
        self.gap_at: int | None = None
        gap = outcome.tombstone
        if gap is not None:
            self.gap_at = gap.earliest_seq - 1 if gap.reason == "recreated" else gap.gap_to
            data = sse.tombstone_data(name, gap, is_first_read=subscription.is_first_read, at=self.gap_at, epoch=epoch)
            self.tombstone = _tail(sse.TOMBSTONE, data)
        if batch.records:
            text = batch.text(subscription.options.view)
            head_seq = outcome.head_seq
            data = record_json(name, text, from_seq=subscription.at, to_seq=self._at, head_seq=head_seq, epoch=epoch)
            self.record = _tail(sse.RECORD, data)
        self.count = bool(self.record) + bool(self.tombstone)  # without `caught_up`
        data = caught_up_json(name, head_seq=outcome.head_seq, epoch=epoch)
        self.caught_up = b"\nevent: %b\ndata: %b\n\n" % (sse.CAUGHT_UP, data)  # our own words: one line

    def joined(self, gap_id: bytes, own_id: bytes, *, with_caught_up: bool) -> bytes:
        """One write: tombstone, records, and the news that the client has seen everything."""
        parts: list[bytes] = []
        if self.tombstone:
            parts += (b"id: ", gap_id, self.tombstone)
        if self.record:
            parts += (b"id: ", own_id, self.record)
        if with_caught_up:
            parts += (b"id: ", own_id, self.caught_up)
        return b"".join(parts)

    def alone(self, with_caught_up: bool) -> bytes:
        """For streams with this one topic: their ids are equal too."""
        data = self._alone[with_caught_up]
        if data is None:
            gap_id = b"" if self.gap_at is None else id_of([piece(self._name, self.gap_at, self._epoch)])
            own_id = id_of([piece(self._name, self._at, self._epoch)])
            data = self._alone[with_caught_up] = self.joined(gap_id, own_id, with_caught_up=with_caught_up)
        return data


def frames_of(batch: RenderedBatch, subscription: FrameTarget) -> SseFrames:
    key = subscription.options.view, subscription.is_first_read
    frames: SseFrames | None = batch.memo.get(key)
    if frames is None:
        frames = batch.memo[key] = SseFrames(batch, subscription)
    return frames


def piece(name: str, at: int, epoch: int) -> bytes:
    """One topic's part of an id. Names of existing topics are plain ASCII, without anything to escape."""
    return sse.id_part(b'"%b"' % name.encode(), Position(at, epoch))


def id_of(pieces: Iterable[bytes]) -> bytes:
    """As `wire.sse.encode_id`, from parts that a stream keeps: with many topics each frame changes one of them."""
    return b2a_base64(b"{%b}" % b",".join(pieces), newline=False).translate(_URLSAFE).rstrip(b"=")


def _tail(event: bytes, data: bytes) -> bytes:
    return b"\nevent: %b\ndata: %b\n\n" % (event, one_line(data))
