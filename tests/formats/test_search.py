"""The search behind a bad frame finds what is there, and hostile bytes cannot make it slow."""

import random

from hypothesis import given
from hypothesis import strategies as st
from tests.formats.plain import wal_frame_at
from tests.formats.samples import TS, append_run, control_frame, hostile_headers
from tests.formats.strategies import damaged, logs

from topics.formats.wal import find_next_valid, scan_behind, search
from topics.formats.wal.frame import blob, encode_frame


def append(seq: int, data: bytes = b"1") -> bytes:
    return encode_frame(1, topic_id=1, seq=seq, ts=TS, data=blob(data))


def plain_next(log: bytes, start: int) -> int | None:
    hits = (at for at in range(start, len(log)) if not isinstance(wal_frame_at(log, at), str))
    return next(hits, None)


@given(damaged(logs), st.data())
def test_the_next_valid_frame_is_the_first_that_a_plain_search_finds(log: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(log)))
    assert find_next_valid(log, start) == plain_next(log, start)


def test_a_frame_is_found_at_every_distance() -> None:
    frame, rng = append(7), random.Random(5)
    for distance in [*range(0, 300, 7), 4095, 4096, 4097, 12288, 60000]:
        junk = rng.randbytes(distance)
        assert find_next_valid(junk + frame + rng.randbytes(50), 0) == distance


def test_a_frame_that_the_end_cuts_is_not_found() -> None:
    frame = append(7)
    for size in range(len(frame)):
        assert find_next_valid(b"\xff" * 100 + frame[:size], 0) is None
    assert find_next_valid(b"\xff" + frame + b"\xff", 0, len(frame)) is None


def test_a_torn_frame_with_zeros_behind_it_has_nothing_behind() -> None:
    assert find_next_valid(append(7)[:-1] + bytes(100_000), 1) is None


def test_all_frames_behind_damage_are_listed() -> None:
    run, mark = append_run(), control_frame("mark-open")
    log = b"\x99" * 77 + run + b"\x07" * 5 + mark + append(9)[:-3] + append(10)
    behind = scan_behind(log, 3)
    assert [stretch.seq.tolist() for stretch in behind.stretches] == [[1, 2, 3, 4, 5], [0], [10]]
    assert not behind.exhausted


def test_nothing_behind_is_no_stretch() -> None:
    assert scan_behind(b"\x01" * 1000, 0) == search.Behind([], False)


def test_overlapping_headers_exhaust_a_budget_and_not_the_machine() -> None:
    log = hostile_headers(2 << 20)
    behind = scan_behind(log, 0)
    assert behind.exhausted
    # The safe reading of "gave up" is "there is something": the bytes are set aside, not cut.
    assert find_next_valid(log, 0) == 0


def test_a_few_overlapping_headers_do_not_hide_a_frame() -> None:
    log = hostile_headers(600) + append(3)
    assert find_next_valid(log, 0) == 600
    assert not scan_behind(log, 0).exhausted
