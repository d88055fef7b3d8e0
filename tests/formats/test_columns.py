"""The column decoder: what a plain reader sees, for any choice of slots and columns, and no bad frame passed over."""

import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.samples import TS, segment_pair
from tests.formats.strategies import Record, Texts, names, texts

from topics.formats.segments import (
    DELETED_BYTE,
    BadSlot,
    FrameColumns,
    decode_columns,
    decode_frames,
    encode_segment_frames,
    scan_segment,
)
from topics.formats.segments.idx import Idx, empty_slots, read_idx
from topics.formats.wal.blob import blob

rows = st.lists(st.tuples(names, names, texts, st.sampled_from(("live", "dead", "flagged", "empty"))), max_size=8)


def pair(content: list[tuple[bytes | None, bytes | None, Texts, str]], first_seq: int) -> tuple[bytes, Idx]:
    """A segment whose slots are live, dead in both places, flagged in `.data` only, or empty."""
    kept = [slot for slot, row in enumerate(content) if row[3] != "empty"]
    frames = encode_segment_frames(
        seqs=[first_seq + slot for slot in kept],
        ts=[TS + slot for slot in kept],
        datas=[blob(*content[slot][2]) for slot in kept],
        nodes=[content[slot][0] for slot in kept],
        tags=[content[slot][1] for slot in kept],
    )
    data = bytearray(frames.buffer)
    idx = empty_slots([TS + slot for slot in range(len(content))])
    idx[kept] = frames.idx
    for slot, row in enumerate(content):
        if row[3] in ("dead", "flagged"):
            data[int(idx["offset"][slot]) + int(idx["len"][slot]) - 1] = DELETED_BYTE
        if row[3] == "dead":
            idx["flags"][slot] |= 4
    return bytes(data), idx


def pieces(data: bytes, found: FrameColumns, name: str) -> list[bytes]:
    starts, lengths = getattr(found, f"{name}_offset").tolist(), getattr(found, f"{name}_len").tolist()
    return [data[a : a + max(n, 0)] for a, n in zip(starts, lengths, strict=True)]


def records(data: bytes, found: FrameColumns) -> list[Record]:
    nodes = [text if there else None for text, there in zip(pieces(data, found, "node"), found.has_node, strict=True)]
    tags = [text if there else None for text, there in zip(pieces(data, found, "tag"), found.has_tag, strict=True)]
    return [Record(*row) for row in zip(nodes, tags, pieces(data, found, "blob"), strict=True)]


@given(rows, st.integers(1, 2**40), st.booleans())
def test_live_records_come_out_whole(content: Any, first_seq: int, verify: bool) -> None:
    data, idx = pair(content, first_seq)
    found = decode_columns(data, idx, first_seq=first_seq, verify=verify)
    live = [slot for slot, row in enumerate(content) if row[3] == "live"]
    assert found.bad == ()
    assert found.slot.tolist() == live
    assert found.seq.tolist() == [first_seq + slot for slot in live]
    assert found.ts.tolist() == [TS + slot for slot in live]
    assert records(data, found) == [Record(content[s][0], content[s][1], blob(*content[s][2])) for s in live]
    assert pieces(data, found, "data") == [content[slot][2].data for slot in live]
    assert found.meta_len is not None
    metas = [m if n >= 0 else None for m, n in zip(pieces(data, found, "meta"), found.meta_len.tolist(), strict=True)]
    assert metas == [content[slot][2].meta for slot in live]


@given(rows)
def test_dead_records_come_out_on_request_and_are_marked(content: Any) -> None:
    data, idx = pair(content, 1)
    found = decode_columns(data, idx, first_seq=1, include_dead=True)
    kept = [slot for slot, row in enumerate(content) if row[3] != "empty"]
    assert found.slot.tolist() == kept
    assert [bool(flags & 4) for flags in found.flags.tolist()] == [content[slot][3] != "live" for slot in kept]


@given(rows, st.data())
def test_a_choice_of_slots_is_a_choice_of_rows(content: Any, data_source: st.DataObject) -> None:
    data, idx = pair(content, 1)
    chosen = sorted(data_source.draw(st.sets(st.integers(0, len(content) - 1)))) if content else []
    whole = decode_columns(data, idx, first_seq=1)
    part = decode_columns(data, idx, first_seq=1, slots=chosen)
    assert part.slot.tolist() == [slot for slot in whole.slot.tolist() if slot in chosen]
    assert records(data, part) == [
        record for slot, record in zip(whole.slot.tolist(), records(data, whole), strict=True) if slot in chosen
    ]


@given(rows, st.data())
def test_a_range_of_the_file_decodes_like_the_file(content: Any, data_source: st.DataObject) -> None:
    data, idx = pair(content, 1)
    low = data_source.draw(st.integers(0, len(content)))
    high = data_source.draw(st.integers(low, len(content)))
    used = idx[low:high][idx[low:high]["len"] > 0]
    start = int(used["offset"][0]) if len(used) else 0
    end = int(used["offset"][-1]) + int(used["len"][-1]) if len(used) else 0
    part = data[start:end]
    found = decode_columns(part, idx, first_seq=1, slots=np.arange(low, high), base=start)
    whole = decode_columns(data, idx, first_seq=1, slots=np.arange(low, high))
    assert found.bad == ()
    assert records(part, found) == records(data, whole)


@given(rows)
def test_frames_without_an_index_decode_the_same(content: Any) -> None:
    data, idx = pair(content, 5)
    scan = scan_segment(data)
    found, expected = decode_frames(data, scan.offset, scan.length), decode_columns(data, idx, first_seq=5)
    assert (found.seq.tolist(), found.ts.tolist()) == (expected.seq.tolist(), expected.ts.tolist())
    assert records(data, found) == records(data, expected)


def test_columns_that_are_not_wanted_are_none() -> None:
    data, raw = segment_pair()
    found = decode_columns(data, read_idx(raw), first_seq=1, want=("tag",))
    assert found.tag_len is not None
    assert (found.node_len, found.data_len, found.meta_len) == (None, None, None)
    bare = decode_columns(data, read_idx(raw), first_seq=1, want=())
    assert (bare.seq.tolist(), bare.blob_len) == ([1, 4], None)


def test_without_wanted_columns_only_flag_bytes_are_read() -> None:
    data, raw = segment_pair()
    idx = read_idx(raw)
    flags = bytearray(len(data))
    for entry in idx[idx["len"] > 0]:
        at = int(entry["offset"]) + int(entry["len"]) - 1
        flags[at] = data[at]
    assert decode_columns(bytes(flags), idx, first_seq=1, want=()).seq.tolist() == [1, 4]


# Fault matrix 77: the damaged record is named, its neighbours are served.
def test_every_bit_flip_in_a_frame_names_its_slot_and_no_other() -> None:
    data, raw = segment_pair()
    idx = read_idx(raw)
    entry = idx[0]
    for bit in range(8 * (int(entry["len"]) - 1)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        found = decode_columns(bytes(broken), idx, first_seq=1)
        assert [bad.slot for bad in found.bad] == [0]
        assert found.seq.tolist() == [4]


def test_a_cut_file_names_every_slot_behind_the_cut() -> None:
    data, raw = segment_pair()
    idx = read_idx(raw)
    ends = (idx["offset"].astype(int) + idx["len"]).tolist()
    for size in range(len(data)):
        found = decode_columns(data[:size], idx, first_seq=1)
        assert found.slot.tolist() == [slot for slot in (0, 3) if ends[slot] <= size]
        assert [bad.slot for bad in found.bad] == [slot for slot in (0, 3) if ends[slot] > size]
        assert {bad.reason for bad in found.bad} <= {"short"}


def resealed(data: bytearray) -> bytes:
    data[-9:-1] = struct.pack("<Q", xxhash.xxh3_64_intdigest(data[4:-9]))
    return bytes(data)


@pytest.mark.parametrize(
    ("reason", "at", "value"),
    [("frame_len", 0, 0x49), ("xxh3", 6, 0xFF), ("blob", 38, 0x20), ("blob", 66, 0x20)],
)
def test_a_bad_frame_says_why(reason: str, at: int, value: int) -> None:
    data, raw = segment_pair()
    frame = bytearray(data[:76])
    frame[at] = value
    content = bytes(frame) if reason in ("frame_len", "xxh3") else resealed(frame)
    assert decode_columns(content, read_idx(raw)[:1], first_seq=1).bad == (BadSlot(0, 0, reason),)


def test_a_good_frame_in_the_wrong_slot_is_bad() -> None:
    data, raw = segment_pair()
    assert decode_columns(data[:76], read_idx(raw)[:1], first_seq=2).bad == (BadSlot(0, 0, "seq"),)


@pytest.mark.parametrize(("field", "value"), [("ts", TS + 1), ("flags", 1), ("flags", 2), ("flags", 0)])
def test_an_entry_that_misdescribes_its_frame_is_told_apart_from_a_bad_frame(field: str, value: int) -> None:
    data, raw = segment_pair()
    idx = read_idx(raw)[:1].copy()
    idx[field][0] = value
    assert decode_columns(data[:76], idx, first_seq=1).bad == (BadSlot(0, 0, "idx"),)


def test_lengths_are_checked_even_without_checksums() -> None:
    data, raw = segment_pair()
    broken = bytearray(data)
    broken[25:29] = (2**32 - 1).to_bytes(4, "little")
    found = decode_columns(bytes(broken), read_idx(raw), first_seq=1, verify=False)
    assert (found.bad, found.seq.tolist()) == ((BadSlot(0, 0, "lengths"),), [4])


def test_a_mapped_file_can_be_closed_after_decoding(tmp_path: Path) -> None:
    data, raw = segment_pair()
    (tmp_path / "data").write_bytes(data)
    with open(tmp_path / "data", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    found = decode_columns(mapped, read_idx(raw), first_seq=1)
    mapped.close()
    assert found.seq.tolist() == [1, 4]
