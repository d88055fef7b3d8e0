"""Sealed segments that were damaged, cut, doubled or joined by foreign files (fault matrix F)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.storage.segments.lab import DIR, Lab, data_path, flip_bit, idx_path, new_lab, tags_path

from topics.core.slots.sealed_slots import SegmentView
from topics.errors import CorruptSegment, StorageIo
from topics.formats.segments.idx import ENTRY_BYTES, read_idx
from topics.model.names import TagMatch
from topics.storage.fetch import SealedRead
from topics.storage.fs import read_file
from topics.storage.segments.topic_dir import FilterCache

FRAME_FIELDS = {
    "frame_len": 0,
    "flags": 4,
    "seq": 5,
    "ts": 13,
    "node_len": 21,
    "tag_len": 23,
    "data_len": 25,
    "tag": 29,
    "blob": 34,
    "xxh3": -9,
}
IDX_FIELDS = {"offset": 0, "len": 4, "ts": 8, "flags": 16, "pad": 17}


def five(*, tag: str | None = "a") -> Lab:
    """One sealed segment 1..5 in the snapshot, whose records the log has forgotten; 6 and 7 are active."""
    lab = new_lab()
    for _ in range(5):
        lab.append(1, tag=tag)
        lab.now_ms += 1000
    return lab.append(2, tag=tag).checkpoint().snapshot().trim_wal()


def set_byte(at: int, value: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes((value,)) + data[at + 1 :]


def cut_to(n: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:n]


def place_of(lab: Lab, seq: int) -> tuple[int, int]:
    entry = read_idx(read_file(lab.fs, idx_path(1)))[seq - 1]
    return int(entry["offset"]), int(entry["len"])


# --- 77, 78: frames -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", FRAME_FIELDS)
@pytest.mark.parametrize("seq", [1, 3, 5])
def test_a_flipped_bit_in_a_frame_is_corruption_of_that_seq_and_changes_no_file(field: str, seq: int) -> None:
    lab = five()
    off, length = place_of(lab, seq)
    lab.tamper(data_path(1), flip_bit(off + FRAME_FIELDS[field] % length))
    before = lab.files()
    again = lab.restart()
    assert again.served() == lab.log.live() | {seq: b"corrupt"}
    assert again.files() == before
    assert again.segment(1).damaged
    assert any(finding.severity == "error" for finding in again.env.take_findings())
    assert again.restart().served() == lab.log.live() | {seq: b"corrupt"}


def test_a_read_over_a_damaged_record_serves_what_is_in_front_of_it() -> None:
    lab = five()
    off, _ = place_of(lab, 3)
    lab = lab.tamper(data_path(1), flip_bit(off + 34)).restart()
    (part,) = lab.fetcher.fetch([SealedRead(lab.segment(1), range(5))]).parts
    assert [record.seq for record in part.run.records()] == [1, 2]
    assert part.seq_next == 3
    with pytest.raises(CorruptSegment) as caught:
        lab.fetcher.fetch([SealedRead(lab.segment(1), range(2, 5))])
    assert (caught.value.topic, caught.value.seq, caught.value.segment) == ("events", 3, "seg-0000000000000001")
    (part,) = lab.fetcher.fetch([SealedRead(lab.segment(1), range(3, 5))]).parts
    assert [record.seq for record in part.run.records()] == [4, 5]


def test_a_damaged_frame_is_taken_from_the_log_while_it_is_there() -> None:
    lab = five()
    off, _ = place_of(lab, 3)
    lab.log.trimmed_to = 0
    lab = lab.tamper(data_path(1), flip_bit(off + 34)).restart()
    assert lab.served() == lab.log.live()
    lab.trim_wal().power_cut().checked()


def test_any_flag_byte_but_one_is_live() -> None:
    lab = five()
    off, length = place_of(lab, 2)
    at = off + length - 1
    for value in set(range(256)) - {0xD5}:
        changed = lab.fork().tamper(data_path(1), set_byte(at, value))
        assert changed.restart().read(2) == lab.log.live()[2], value


def test_a_flagged_frame_is_dead_even_if_its_entry_does_not_say_so() -> None:
    lab = five()
    off, length = place_of(lab, 2)
    at = off + length - 1
    lab = lab.tamper(data_path(1), set_byte(at, 0xD5)).restart()
    (part,) = lab.fetcher.fetch([SealedRead(lab.segment(1), range(5))]).parts
    assert [record.seq for record in part.run.records()] == [1, 3, 4, 5]
    assert part.seq_next == 6


# --- 79, 80: the index ----------------------------------------------------------------------------------------------


def test_an_index_cut_at_any_byte_is_rebuilt() -> None:
    lab = five()
    whole = lab.files()
    for n in range(5 * ENTRY_BYTES):
        again = lab.fork().tamper(idx_path(1), cut_to(n)).restart()
        assert again.served() == lab.log.live(), n
        assert again.files() == whole, n
        assert again.env.counters.idx_rebuilt == 1, n


def test_a_missing_index_is_rebuilt() -> None:
    lab = five()
    whole = lab.files()
    lab.disk.erase(idx_path(1))
    again = lab.restart().checked()
    assert again.files() == whole


def test_an_index_that_cannot_be_written_again_serves_from_memory() -> None:
    lab = five().restart()
    lab.disk.erase(idx_path(1))
    lab.faults.fill_disk()
    assert lab.served() == lab.log.live()
    lab.faults.clear()
    lab.segment(1).unmap()
    assert lab.served() == lab.log.live()
    assert idx_path(1) in lab.files()
    lab.checked()


@pytest.mark.parametrize("extra", [b"\0", bytes(20), b"x" * 20, b"x" * 33])
def test_an_index_that_is_too_long_is_rebuilt(extra: bytes) -> None:
    lab = five()
    whole = lab.files()
    again = lab.tamper(idx_path(1), lambda data: data + extra).restart().checked()
    assert again.files() == whole


@pytest.mark.parametrize("field", IDX_FIELDS)
@pytest.mark.parametrize("seq", [1, 3, 5])
def test_a_flipped_bit_in_an_entry_makes_no_record_vanish_or_expire_early(field: str, seq: int) -> None:
    lab = five()
    whole = lab.files()
    times = {s: lab.log.records[s].ts for s in range(1, 6)}
    for bit in range(8):
        at = (seq - 1) * ENTRY_BYTES + IDX_FIELDS[field]
        again = lab.fork().tamper(idx_path(1), flip_bit(at, 1 << bit)).restart()
        assert {s: again.segment(1).checked_ts(s - 1) for s in range(1, 6)} == times, bit
        assert again.served() == lab.log.live(), bit
        assert again.files() == whole, bit


def test_a_rebuilt_index_keeps_deletes_and_empty_slots() -> None:
    lab = new_lab().append(5).delete(2).checkpoint().delete(4).snapshot().trim_wal()
    lab.disk.erase(idx_path(1))
    again = lab.restart()
    assert (again.segment(1).flags & 4).tolist() == [0, 4, 0, 4, 0]
    assert again.segment(1).lens[1] == 0
    again.checked()


# --- 81, 82: the data -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_index", [True, False])
def test_data_cut_at_any_byte_serves_what_is_before_the_cut(with_index: bool) -> None:
    lab = five()
    whole = read_file(lab.fs, data_path(1))
    ends = np.cumsum([place_of(lab, seq)[1] for seq in range(1, 6)])
    if not with_index:
        lab.disk.erase(idx_path(1))
    for n in range(len(whole)):
        cut = lab.fork().tamper(data_path(1), cut_to(n))
        before = cut.files()
        again = cut.restart()
        lost = {seq: b"corrupt" for seq in range(1, 6) if ends[seq - 1] > n}
        assert again.served() == lab.log.live() | lost, n
        assert again.files() == before, n


def test_missing_data_is_corruption_of_the_range_and_the_start_works() -> None:
    lab = five()
    lab.disk.erase(data_path(1))
    again = lab.restart()
    assert again.served() == lab.log.live() | dict.fromkeys(range(1, 6), b"corrupt")
    assert again.loaded.missing == [again.segment(1)]
    again.append(1).checkpoint()
    assert again.restart().served() == lab.log.live() | dict.fromkeys(range(1, 6), b"corrupt")


def test_missing_data_and_index_are_corruption_of_the_range() -> None:
    lab = five()
    lab.disk.erase(data_path(1))
    lab.disk.erase(idx_path(1))
    assert lab.restart().served() == lab.log.live() | dict.fromkeys(range(1, 6), b"corrupt")


def test_missing_data_is_written_again_from_the_log() -> None:
    lab = five()
    lab.disk.erase(data_path(1))
    lab.log.trimmed_to = 0
    again = lab.restart()
    assert again.served() == lab.log.live()
    assert not again.loaded.missing
    again.trim_wal().power_cut().checked()


def test_a_lone_index_below_the_floor_is_removed() -> None:
    lab = five()
    lab.disk.erase(data_path(1))
    lab.log.expected.earliest_seq = 6
    again = lab.restart()
    assert idx_path(1) not in again.files()
    assert not again.sealed
    again.checked()


# --- 83: read errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["open", "mmap"])
@pytest.mark.parametrize("path", ["*.data", "*.idx"])
def test_a_read_error_is_told_apart_from_corruption_and_changes_nothing(kind: str, path: str) -> None:
    lab = five().restart()
    before = lab.files()
    lab.segment(1).unmap()
    lab.faults.fail(kind, path)  # type: ignore[arg-type]
    with pytest.raises(StorageIo):
        lab.read(3)
    assert lab.read(3) == lab.log.live()[3]
    assert lab.files() == before
    assert not lab.segment(1).damaged


def test_a_read_error_of_the_active_segment_is_told_apart_too() -> None:
    lab = five().restart()
    lab.faults.fail("pread", "*.data")
    with pytest.raises(StorageIo):
        lab.read(6)
    assert lab.read(6) == lab.log.live()[6]


@pytest.mark.parametrize("kind", ["listdir", "stat_len", "open", "mmap"])
def test_a_read_error_at_start_stops_the_start_and_changes_nothing(kind: str) -> None:
    lab = five()
    before = lab.files()
    lab = lab.restart()
    lab.env.files.close()
    lab.faults.fail(kind, f"{DIR}*")  # type: ignore[arg-type]
    with pytest.raises((OSError, StorageIo)):
        Lab(lab.disk, lab.log, fs=lab.faults, may_write=False)
    assert lab.files() == before
    lab.checked()


# --- 84, 85: names --------------------------------------------------------------------------------------------------


def test_the_padded_name_counts_and_the_other_is_reported_and_kept() -> None:
    lab = five()
    lab.disk.plant(f"{DIR}/seg-1.data", b"something else")
    lab.disk.plant(f"{DIR}/seg-1.idx", b"")
    again = lab.restart().checked()
    reported = {finding.file for finding in again.findings}
    assert {f"{DIR}/seg-1.data", f"{DIR}/seg-1.idx"} <= reported
    assert again.files()[f"{DIR}/seg-1.data"] == b"something else"


def test_a_name_that_is_padded_otherwise_is_used_when_it_is_the_only_one() -> None:
    lab = five()
    for part in ("data", "idx"):
        path = f"{DIR}/seg-0000000000000001.{part}"
        lab.disk.plant(f"{DIR}/seg-1.{part}", lab.disk.contents(path))
        lab.disk.erase(path)
    lab.restart().checked()


@pytest.mark.parametrize("name", ["notes.txt", "seg-x.data", "core.tmp", "seg-0000000000000001.data.bak", "SEG-1.DATA"])
def test_foreign_files_are_ignored_reported_and_kept(name: str) -> None:
    lab = five()
    lab.disk.plant(f"{DIR}/{name}", b"mine")
    again = lab.restart().checked()
    assert any(finding.file == f"{DIR}/{name}" for finding in again.findings)
    assert again.files()[f"{DIR}/{name}"] == b"mine"


@pytest.mark.parametrize("first", [2, 3, 4, 5])
def test_of_overlapping_segments_the_recorded_one_wins_and_the_other_is_set_aside(first: int) -> None:
    lab = five()
    for part in ("data", "idx"):
        lab.disk.plant(f"{DIR}/seg-{first:016d}.{part}", lab.disk.contents(f"{DIR}/seg-0000000000000001.{part}"))
    again = lab.restart()
    assert f"{DIR}/seg-{first:016d}.data.dup" in again.files()
    assert any("overlaps" in finding.message for finding in again.findings)
    again.checked()


def test_of_overlapping_segments_that_nothing_recorded_the_lower_one_wins() -> None:
    lab = five()
    lab.log.expected.segments = ()
    for part in ("data", "idx"):
        lab.disk.plant(f"{DIR}/seg-0000000000000003.{part}", lab.disk.contents(f"{DIR}/seg-0000000000000001.{part}"))
    again = lab.restart()
    assert f"{DIR}/seg-0000000000000003.data.dup" in again.files()
    again.checked()


# --- nothing is written before recovery says so ---------------------------------------------------------------------


def test_loading_changes_no_byte_until_writing_is_allowed() -> None:
    lab = five()
    lab.tamper(idx_path(1), lambda data: data[:-3]).tamper(data_path(6), lambda data: data + b"torn")
    lab.disk.plant(f"{DIR}/seg-0000000000000001.idx.tmp", b"left over")
    before = lab.disk.dump()
    again = lab.restart(may_write=False)
    assert again.served() == lab.log.live()
    assert again.disk.dump() == before
    again.env.allow_writes(again.fs)
    assert again.disk.dump() != before
    again.checked()


# --- trust at start, checks at first use ----------------------------------------------------------------------------


def test_a_start_maps_no_sealed_segment_whose_lengths_are_as_recorded() -> None:
    lab = new_lab().append(500).checkpoint().snapshot().restart()
    mapped = []
    lab.faults.hook = lambda call: mapped.append(call.path) if call.kind == "mmap" else None
    Lab(lab.disk, lab.log, fs=lab.faults, may_write=False)
    assert mapped == []


def test_totals_come_from_the_snapshot_or_are_counted() -> None:
    lab = new_lab().append(5).append(5).checkpoint().delete(2).snapshot()
    trusted = lab.restart().loaded.sealed[0]
    assert (trusted.live, trusted.counted) == (4, False)
    lab.log.expected.segments = ()
    counted = lab.restart().loaded.sealed[0]
    assert (counted.live, counted.live_bytes, counted.counted) == (4, trusted.live_bytes, True)


# --- tags and sizes -------------------------------------------------------------------------------------------------


def _tagged() -> Lab:
    lab = new_lab()
    for tag in ("a:1", "a:2", "b:1", None, "a:1"):
        lab.append(1, tag=tag)
    return lab.checkpoint().snapshot()


def _check_tags(lab: Lab) -> None:
    segment = lab.segment(1)
    assert segment.tag_slots(TagMatch("Eq", "a:1")).tolist() == [0, 4]
    assert segment.tag_slots(TagMatch("Glob", "a:")).tolist() == [0, 1, 4]
    assert segment.tag_slots(TagMatch("Glob", "")).tolist() == [0, 1, 2, 4]
    assert segment.tag_slots(TagMatch("Eq", "c")).tolist() == []
    assert segment.sizes(0, 5).tolist() == [len(lab.log.records[seq].blob) - 6 for seq in range(1, 6)]


def test_tags_and_sizes_come_from_the_sidecar() -> None:
    lab = _tagged()
    _check_tags(lab)
    _check_tags(lab.restart())


@pytest.mark.parametrize("edit", [lambda d: b"", lambda d: d[:-1], flip_bit(50), flip_bit(20), lambda d: d + b"x"])
def test_a_bad_sidecar_is_built_again(edit: object) -> None:
    lab = _tagged()
    good = lab.disk.contents(tags_path(1))
    lab = lab.tamper(tags_path(1), edit).restart()  # type: ignore[arg-type]
    _check_tags(lab)
    assert lab.disk.contents(tags_path(1)) == good


def test_a_missing_sidecar_is_built_again() -> None:
    lab = _tagged()
    lab.disk.erase(tags_path(1))
    lab = lab.restart()
    _check_tags(lab)
    assert "seg-0000000000000001.tags" in lab.names()


def test_a_sidecar_without_its_segment_is_removed() -> None:
    lab = _tagged()
    lab.disk.plant(tags_path(900), b"old")
    assert "seg-0000000000000900.tags" not in lab.restart().names()


def test_sizes_count_data_and_meta_texts_only() -> None:
    lab = new_lab().append(5)
    lab.log.records[2].blob = b'{"d":{"x":1,"m":2},"m":{"k":"v"}}'
    lab.log.records[3].blob = b'{"d":{"y":[],"m":0}}'
    lab.checkpoint()
    lab.disk.erase(tags_path(1))
    sizes = lab.restart().segment(1).sizes(0, 5).tolist()
    assert sizes[1:3] == [len('{"x":1,"m":2}') + len('{"k":"v"}'), len('{"y":[],"m":0}')]


# --- what the core sees -----------------------------------------------------------------------------------------------


def test_a_sealed_segment_is_the_view_that_the_core_reads() -> None:
    lab = five()
    view: SegmentView = lab.segment(1)
    assert (view.first_seq, view.count, view.tier) == (1, 5, "hot")
    assert view.ts.tolist() == [lab.log.records[seq].ts for seq in range(1, 6)]
    assert (view.first_ts, view.last_ts) == (lab.log.records[1].ts, lab.log.records[5].ts)
    assert view.checked_ts(2) == lab.log.records[3].ts
    assert view.lens.tolist() == [place_of(lab, seq)[1] for seq in range(1, 6)]
    assert view.sizes(1, 3).tolist() == [len(lab.log.records[seq].blob) - 6 for seq in (2, 3)]


def test_damage_is_reported_once_however_often_the_segment_is_mapped() -> None:
    lab = five().tamper(data_path(1), cut_to(30)).restart()
    lab.env.take_findings()
    for _ in range(3):
        lab.segment(1).unmap()
        assert lab.segment(1).damaged or lab.segment(1).pair().bad is not None
    assert lab.env.take_findings() == []


# --- the tag filter --------------------------------------------------------------------------------------------------


def test_an_unmapped_segment_still_knows_which_tags_it_lacks() -> None:
    segment = five(tag="a").segment(1)
    segment.load_index()
    segment.unmap()
    assert (segment.lacks(b"a"), segment.lacks(b"b"), segment.loaded) == (False, True, False)
    segment.forget_filter()
    assert not segment.lacks(b"b")


def test_filters_beyond_their_memory_are_forgotten_oldest_first() -> None:
    class Kept:
        has_filter = True

        def forget_filter(self) -> None:
            self.has_filter = False

    cache = FilterCache(3000)
    kept = [Kept() for _ in range(4)]
    for segment in kept:
        cache.admit(segment, 1000 - 256)
    assert [segment.has_filter for segment in kept] == [False, True, True, True]
    cache.remove(kept[1])
    assert cache.bytes_kept == 2000
