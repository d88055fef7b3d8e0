"""Tags and accounted sizes of a sealed segment, through its `.tags` sidecar.

The sidecar is derived data: it is written without a sync, checked in full whenever it is opened, and built again from
the frames when it is missing, stale or bad. It stays in the hot tier when its segment is moved, so a match delete never
waits for the cold store unless the sidecar was lost.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from topics.errors import ColdUnavailable
from topics.formats.buffers import I64, U32, gather_u8, pieces
from topics.formats.file_names import TMP_SUFFIX
from topics.formats.segments.columns import decode_columns
from topics.formats.segments.idx import Idx
from topics.formats.segments.sidecar import TagSidecar, encode_sidecar, sidecar_matches
from topics.storage.fs import write_all

if TYPE_CHECKING:
    from topics.storage.segments.sealed_segment import SealedSegment
    from topics.storage.segments.topic_dir import TopicDir


_FLAGS_AT = 4  # of a frame's flags, behind its length
_PRESENCE = np.uint8(3)  # has_tag, has_node


class TagMatchLike(Protocol):
    """`model.match.TagMatch`: `value` of a Glob is the literal prefix."""

    @property
    def op(self) -> str: ...
    @property
    def value(self) -> str: ...


class TagIndex:
    """An opened sidecar."""

    __slots__ = ("_sidecar", "filter", "sizes")

    def __init__(self, sidecar: TagSidecar) -> None:
        self._sidecar = sidecar
        self.filter = sidecar.filter
        self.sizes: U32 = sidecar.sizes

    def slots(self, match: TagMatchLike) -> I64:
        """Slots whose tag matches, ascending."""
        wanted = match.value.encode()
        look_up = self._sidecar.lookup_eq if match.op == "Eq" else self._sidecar.lookup_prefix
        return look_up(wanted).astype(np.int64)

    def tags_after(self, after: bytes | None, prefix: bytes, limit: int) -> list[tuple[bytes, I64]]:
        """Up to so many tags with this prefix behind `after`, ascending, and the slots of each."""
        return [(tag, slots.astype(np.int64)) for tag, slots in self._sidecar.tags_after(after, prefix, limit)]


def load_tag_index(segment: SealedSegment, *, wait: bool) -> TagIndex:
    """The segment's sidecar, built and written anew when it cannot be used. For a cold segment that means fetching all
    of it: ColdUnavailable unless the caller may `wait`."""
    buffer = _read_sidecar(segment)
    if buffer is None:
        pair = segment.pair()
        if pair.data is None and not wait:
            raise ColdUnavailable(segment.label, reason="its tags are not loaded yet")
        data = pair.data if pair.data is not None else segment.read_cold_data()
        buffer = memoryview(build_sidecar(pair.entries, data, first_seq=segment.first_seq))
        segment.place.env.write_or_defer(partial(write_sidecar, segment.place, segment.first_seq, buffer))
    return TagIndex(TagSidecar(buffer))


def _read_sidecar(segment: SealedSegment) -> memoryview | None:
    place = segment.place
    try:
        file = place.read_fs.open(place.file(segment.first_seq, "tags"))
    except FileNotFoundError:
        return None
    try:
        buffer = file.mmap()
    finally:
        file.close()
    return buffer if sidecar_matches(buffer, count=segment.count, data_len=segment.data_len) else None


def build_sidecar(
    entries: Idx, data: memoryview | bytes, *, first_seq: int, sizes: npt.ArrayLike | None = None
) -> bytes:
    """The sidecar of a segment from its frames; `sizes` when they are known already. Damaged frames have no tag."""
    if sizes is None:
        sizes = accounted_sizes(entries, data, first_seq=first_seq)
    tags = frame_tags(entries, data, first_seq=first_seq)
    return encode_sidecar(tags=tags, sizes=sizes, data_len=len(data))


def accounted_sizes(entries: Idx, data: memoryview | bytes, *, first_seq: int) -> U32:
    """Accounted bytes of every slot; 0 where there is no good frame."""
    found = decode_columns(data, entries, first_seq=first_seq, want=("data", "meta"), verify=False, include_dead=True)
    assert found.data_len is not None
    assert found.meta_len is not None
    sizes: U32 = np.zeros(len(entries), np.uint32)
    sizes[found.slot] = found.data_len + np.maximum(found.meta_len, 0)
    return sizes


def frame_tags(entries: Idx, data: memoryview | bytes, *, first_seq: int) -> list[bytes | None]:
    """The tag of every slot, None where there is none."""
    tags: list[bytes | None] = [None] * len(entries)
    entries = _described_by_frames(entries, data)
    tagged = np.flatnonzero(entries["flags"] & 1)
    if not len(tagged):
        return tags
    found = decode_columns(
        data, entries, first_seq=first_seq, slots=tagged, want=("tag",), verify=False, include_dead=True
    )
    assert found.tag_offset is not None
    assert found.tag_len is not None
    texts = pieces(data, found.tag_offset, found.tag_len)
    for slot, text in zip(found.slot.tolist(), texts, strict=True):
        tags[slot] = text
    return tags


def _described_by_frames(entries: Idx, data: memoryview | bytes) -> Idx:
    """The entries with the presence bits of their frames. A crash can spoil the byte that a delete was changing in an
    entry; the tag must be found all the same, or a replayed delete by tag would pass the record over."""
    framed = np.flatnonzero((entries["len"] > 0) & (entries["offset"].astype(np.int64) + _FLAGS_AT < len(data)))
    own = gather_u8(memoryview(data), entries["offset"][framed].astype(np.int64) + _FLAGS_AT) & _PRESENCE
    if bool((own == entries["flags"][framed] & _PRESENCE).all()):
        return entries
    entries = entries.copy()
    entries["flags"][framed] = (entries["flags"][framed] & ~_PRESENCE) | own
    return entries


def write_sidecar(place: TopicDir, first_seq: int, content: bytes | memoryview) -> None:
    """Put a sidecar in its place, whole; a failure is no failure, because it can always be built again. Others may read
    or map the old one at this moment, so that is never cut or overwritten: a mapping of it must stay what it was."""
    path = place.file(first_seq, "tags")
    temp = path + TMP_SUFFIX
    try:
        with place.env.sidecar_lock:  # two threads may build the same one
            file = place.fs.open(temp, "create")
            try:
                write_all(file, 0, content)
            finally:
                file.close()
            place.fs.rename(temp, path)
    except OSError:
        pass


def sync_sidecar(segment: SealedSegment) -> None:
    """Make the sidecar durable: once its segment is cold, building it again would mean fetching all of it."""
    segment.tag_index()
    try:
        file = segment.place.fs.open(segment.place.file(segment.first_seq, "tags"), "rw")
    except FileNotFoundError:
        return  # it could not be written; then it is built again when it is needed
    try:
        file.fsync()
    finally:
        file.close()
    segment.place.fs.sync_dir(segment.place.path)
