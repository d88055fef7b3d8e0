"""RecordReread: records as recovery finds them, dead ones included, for routers that copy them again
(`docs/spec/storage.md#sec-9-6`).

Every frame is checked as in `storage.fetch`; a flag byte only says that readers of the source no longer see the record.
What lies in the cold store is read from there, but only where it is alive."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from topics.core.delete import finish_cold_delete
from topics.core.slots.extent import Extent, RecordPlace
from topics.core.topic import TopicLog
from topics.errors import StorageIo
from topics.formats.segments.columns import FrameColumns, decode_columns, decode_frames
from topics.model.run import BODY_HEAD_BYTES, EMPTY_RUN, PRESENCE_MASK, RecordRun
from topics.storage.disk_spans import read_spans
from topics.storage.fetch import Fetcher, SealedRead, WalRead
from topics.storage.segments.active_segment import ActiveSegment
from topics.storage.segments.sealed_segment import SealedSegment

ActiveOf = Callable[[int], ActiveSegment | None]


class RecordReread:
    """`active_of` gives the active segment of a topic by its id."""

    def __init__(self, fetcher: Fetcher, active_of: ActiveOf) -> None:
        self._fetcher = fetcher
        self._active_of = active_of

    def __call__(self, topic: TopicLog, extent: Extent) -> RecordRun:
        if extent.place is RecordPlace.WAL:
            read = WalRead(extent.file, extent.seqs, extent.offs, extent.lens)
            return self._fetcher.fetch([read]).parts[0].run
        if extent.place in (RecordPlace.SEALED, RecordPlace.INDEX):
            view: SealedSegment = extent.view  # type: ignore[assignment]
            return self._sealed(topic, view, extent)
        active = self._active_of(topic.id)
        assert active is not None, "records are placed in an active segment that is not there"
        offs, lens = extent.offs.astype(np.int64), extent.lens.astype(np.int64)
        buffer, at = read_spans(active.read, offs, lens)
        return _run(topic, decode_frames(buffer, at, lens, want=("node",), include_dead=True), memoryview(buffer))

    def _sealed(self, topic: TopicLog, segment: SealedSegment, extent: Extent) -> RecordRun:
        if segment.tier == "cold":
            segment.load_index()
        if extent.place is RecordPlace.INDEX:
            finish_cold_delete(topic, segment.first_seq)
            return EMPTY_RUN
        pair = segment.pair()
        if pair.data is None:
            return self._fetcher.fetch([SealedRead(segment, extent.slots)]).parts[0].run
        found = decode_columns(
            pair.data, pair.entries, first_seq=segment.first_seq, slots=extent.slots, want=("node",), include_dead=True
        )
        return _run(topic, found, pair.data)


def _run(topic: TopicLog, found: FrameColumns, data: memoryview) -> RecordRun:
    if found.bad:
        raise StorageIo(f"records of topic {topic.name!r} cannot be read again")
    assert found.node_offset is not None
    return RecordRun(data, (found.node_offset - BODY_HEAD_BYTES).tolist(), (found.flags & PRESENCE_MASK).tobytes())
