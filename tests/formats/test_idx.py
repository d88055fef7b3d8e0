"""Index entries: a pair agrees exactly when every rule of `docs/spec/storage.md#sec-6-3` holds, and a lost index comes
back."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.samples import TS, segment_pair

from topics.formats.segments import (
    DELETED_BYTE,
    BadRange,
    decode_columns,
    encode_segment_frames,
    rebuild_idx,
)
from topics.formats.segments.idx import ENTRY_BYTES, IDX_DTYPE, empty_slots, idx_agrees, is_empty_slot, read_idx
from topics.formats.wal.blob import blob

DATA, IDX = segment_pair()


def edited(**changes: tuple[int, Any]) -> np.ndarray[Any, Any]:
    idx = read_idx(IDX).copy()
    for field, (slot, value) in changes.items():
        idx[field][slot] = value
    return idx


def test_the_sample_pair_agrees() -> None:
    assert idx_agrees(IDX, len(DATA), DATA) is None
    assert idx_agrees(read_idx(IDX), len(DATA)) is None
    assert is_empty_slot(read_idx(IDX)).tolist() == [False, True, False, False]


def test_an_empty_pair_agrees() -> None:
    assert idx_agrees(b"", 0, b"") is None
    assert idx_agrees(b"", 1, b"x") == "tiling"


@pytest.mark.parametrize("cut", range(1, 2 * ENTRY_BYTES + 1))
def test_a_cut_index_does_not_agree(cut: int) -> None:
    assert idx_agrees(IDX[:-cut], len(DATA), DATA) == ("tiling" if cut % ENTRY_BYTES == 0 else "length")


# Fault matrix 70: a zero-filled tail is no empty slot.
def test_an_unwritten_tail_does_not_agree() -> None:
    assert idx_agrees(IDX + bytes(ENTRY_BYTES), len(DATA), DATA) == "empty"


@pytest.mark.parametrize(
    ("idx", "reason"),
    [
        (edited(offset=(2, 1)), "offset"),
        (edited(offset=(1, 1)), "offset"),
        (edited(len=(3, 37)), "len"),
        (edited(len=(3, 48)), "tiling"),
        (edited(ts=(0, TS + 5)), "ts"),
        (edited(flags=(0, 0x08)), "flags"),
        (edited(flags=(1, 0x05)), "empty"),
        (edited(flags=(1, 0x00)), "empty"),
        (edited(flags=(0, 0x07)), "deleted"),
        (edited(pad=(3, np.void(b"\0\0\1"))), "pad"),
    ],
)
def test_a_wrong_field_does_not_agree(idx: np.ndarray[Any, Any], reason: str) -> None:
    assert idx_agrees(idx, len(DATA), DATA) == reason


def test_a_flagged_frame_without_its_bit_agrees() -> None:
    assert idx_agrees(edited(flags=(2, 0)), len(DATA), DATA) is None


# Fault matrix 80: a flip that the agreement check cannot see is seen when the record is read.
def test_every_bit_flip_in_the_index_is_found_on_load_or_read() -> None:
    healthy = decode_columns(DATA, read_idx(IDX), first_seq=1).seq.tolist()
    for bit in range(8 * len(IDX)):
        raw = bytearray(IDX)
        raw[bit // 8] ^= 1 << bit % 8
        if idx_agrees(bytes(raw), len(DATA), DATA) is not None:
            continue
        found = decode_columns(DATA, read_idx(bytes(raw)), first_seq=1)
        harmless = bit // (8 * ENTRY_BYTES) in (
            1,
            2,
        )  # the empty and the deleted slot: their ts says nothing to a reader
        assert found.bad or (harmless and found.seq.tolist() == healthy)


def test_an_index_can_be_rebuilt_from_its_frames() -> None:
    rebuilt = rebuild_idx(DATA, first_seq=1)
    assert rebuilt.bad == ()
    assert rebuilt.idx.tobytes() == IDX


def test_the_known_count_adds_empty_slots_at_the_end() -> None:
    rebuilt = rebuild_idx(DATA, first_seq=1, count=6)
    assert rebuilt.idx.tobytes() == IDX + empty_slots([TS + 1, TS + 1]).tobytes()
    assert idx_agrees(rebuilt.idx, len(DATA), DATA) is None


def test_slots_in_front_of_the_first_frame_are_empty() -> None:
    frames = encode_segment_frames(seqs=[8], ts=[TS], datas=[blob(b"8")])
    rebuilt = rebuild_idx(frames.buffer, first_seq=5)
    assert rebuilt.idx.tobytes() == empty_slots([TS] * 3).tobytes() + frames.idx.tobytes()


def test_an_empty_file_has_only_empty_slots() -> None:
    rebuilt = rebuild_idx(b"", first_seq=5, count=2)
    assert (rebuilt.idx.tobytes(), rebuilt.bad) == (empty_slots([0, 0]).tobytes(), ())
    assert len(rebuild_idx(b"", first_seq=5).idx) == 0


FIVE = encode_segment_frames(seqs=range(1, 6), ts=[TS] * 5, datas=[blob(b"%d" % i) for i in range(5)])
SIZE = int(FIVE.idx["len"][0])


def live_seqs(data: bytes, idx: np.ndarray[Any, Any]) -> list[int]:
    seqs: list[int] = decode_columns(data, idx, first_seq=1).seq.tolist()
    return seqs


# Fault matrix 77 and 79 at once: the index is gone and a frame is damaged.
def test_one_flipped_bit_costs_exactly_its_frame() -> None:
    for bit in range(8 * SIZE):
        data = bytearray(FIVE.buffer)
        data[2 * SIZE + bit // 8] ^= 1 << bit % 8
        rebuilt = rebuild_idx(bytes(data), first_seq=1, count=5)
        if bit // 8 == SIZE - 1:
            assert rebuilt.bad == ()
            continue
        assert rebuilt.bad == (BadRange(2 * SIZE, 3 * SIZE, 3, 3),)
        assert live_seqs(bytes(data), rebuilt.idx) == [1, 2, 4, 5]
        assert decode_columns(bytes(data), rebuilt.idx, first_seq=1).bad[0].slot == 2


def test_a_length_that_points_at_a_later_frame_does_not_hide_the_ones_between() -> None:
    data = bytearray(FIVE.buffer)
    data[SIZE : SIZE + 4] = (3 * SIZE - 4).to_bytes(4, "little")
    rebuilt = rebuild_idx(bytes(data), first_seq=1, count=5)
    assert rebuilt.bad == (BadRange(SIZE, 2 * SIZE, 2, 2),)
    assert live_seqs(bytes(data), rebuilt.idx) == [1, 3, 4, 5]


# Fault matrix 81.
def test_a_cut_data_file_loses_the_seqs_behind_the_cut_and_says_so() -> None:
    for size in range(len(FIVE.buffer)):
        data = FIVE.buffer[:size]
        rebuilt = rebuild_idx(data, first_seq=1, count=5, data_len=len(FIVE.buffer))
        whole = size // SIZE
        assert live_seqs(data, rebuilt.idx) == list(range(1, whole + 1))
        assert rebuilt.bad == (BadRange(whole * SIZE, size, whole + 1, 5),)


def test_frames_of_another_place_are_no_part_of_the_segment() -> None:
    strangers = encode_segment_frames(seqs=[9, 1], ts=[TS, TS], datas=[blob(b"9"), blob(b"1")]).buffer
    data = FIVE.buffer[: 2 * SIZE] + strangers + FIVE.buffer[2 * SIZE :]
    rebuilt = rebuild_idx(data, first_seq=1, count=5)
    assert live_seqs(data, rebuilt.idx) == [1, 2, 3, 4, 5]
    assert [gap[:2] for gap in rebuilt.bad] == [(2 * SIZE, 3 * SIZE), (3 * SIZE, 4 * SIZE)]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=30), st.sets(st.integers(0, 29)), st.sets(st.integers(0, 29)))
def test_a_rebuilt_index_has_every_frame_and_every_flag(steps: list[int], dead: set[int], broken: set[int]) -> None:
    seqs = np.cumsum(steps).tolist()
    frames = encode_segment_frames(seqs=seqs, ts=seqs, datas=[blob(b"%d" % seq) for seq in seqs])
    data = bytearray(frames.buffer)
    for row, entry in enumerate(frames.idx):
        at, size = int(entry["offset"]), int(entry["len"])
        if row in dead:
            data[at + size - 1] = DELETED_BYTE
        if row in broken:
            data[at + 20] ^= 1
    rebuilt = rebuild_idx(bytes(data), first_seq=1, count=seqs[-1])
    good = [seq for row, seq in enumerate(seqs) if row not in broken and row not in dead]
    assert live_seqs(bytes(data), rebuilt.idx) == good
    named = {seq for gap in rebuilt.bad for seq in range(gap.first_seq, gap.last_seq + 1)}
    assert {seq for row, seq in enumerate(seqs) if row in broken} <= named
    assert named.isdisjoint(good)
    assert bool(rebuilt.bad) == bool({row for row in broken if row < len(seqs)})
    if not rebuilt.bad:
        assert idx_agrees(rebuilt.idx, len(data), bytes(data)) is None


def test_an_entry_is_twenty_bytes() -> None:
    assert IDX_DTYPE.itemsize == ENTRY_BYTES == 20
    assert read_idx(IDX + b"torn").tobytes() == IDX
