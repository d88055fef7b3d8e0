"""Reading stored records: by source, checked, without copies, under readers' feet."""

from __future__ import annotations

import threading
from array import array
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.storage.segments.lab import COLD, HOT, Lab, data_path, flip_bit, new_lab

from topics.errors import CorruptSegment, StorageIo
from topics.formats.segments.columns import decode_columns
from topics.formats.segments.idx import read_idx
from topics.formats.wal.frame import encode_appends
from topics.model.run import RecordRun
from topics.storage.checkpoint.absorb import SealRules
from topics.storage.disk_spans import GAP_BYTES_MAX, read_spans
from topics.storage.fetch import ActiveRead, Fetcher, RecordsMoved, SealedRead, WalRead
from topics.storage.osfs import OsFs
from topics.storage.segments.flips import DeleteFlags
from topics.storage.segments.loading.open_end import judge_open_end
from topics.storage.segments.rewrite import rewrite
from topics.storage.segments.sealed_segment import SealedSegment
from topics.storage.segments.segment_arrays import SegmentArrays, few_slots, run_of_slots
from topics.storage.segments.tags import accounted_sizes, frame_tags
from topics.storage.segments.topic_dir import SegmentEnv, TopicDir
from topics.storage.tiers.cold_cache import ColdCache
from topics.storage.tiers.relocate import flush_cold_flips, promote, relocate
from topics.storage.tiers.stores import LocalStore
from topics.testing import SimFs

FORTY = SealRules(max_events=40)


def forty() -> Lab:
    """Sealed 1..40, active 41..45."""
    return new_lab(rules=FORTY).append(40, tag="a").append(5).checkpoint()


def seqs(run: RecordRun) -> list[int]:
    return [record.seq for record in run.records()]


# --- sources ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [range(1), range(40), range(3, 30), range(39, 40), range(5, 5)])
def test_a_run_of_slots_comes_back_with_every_field(wanted: range) -> None:
    lab = forty()
    (part,) = lab.fetcher.fetch([SealedRead(lab.segment(1), wanted)]).parts
    records = list(part.run.records())
    assert [record.seq for record in records] == [slot + 1 for slot in wanted]
    for record in records:
        known = lab.log.records[record.seq]
        assert (record.ts, record.tag, record.node, record.blob) == (known.ts, b"a", None, known.blob)
    assert part.seq_next == (wanted[-1] + 2 if wanted else 0)


def test_scattered_slots_come_back_too() -> None:
    lab = forty()
    slots = np.array([0, 3, 4, 5, 17, 39])
    assert seqs(lab.fetcher.fetch([SealedRead(lab.segment(1), slots)]).runs[0]) == [1, 4, 5, 6, 18, 40]


def test_a_sealed_run_is_a_view_of_the_mapping() -> None:
    lab = forty()
    run = lab.fetcher.fetch([SealedRead(lab.segment(1), range(40))]).runs[0]
    assert run.buf is lab.segment(1).pair().data


def test_several_reads_are_answered_in_order_by_source() -> None:
    lab = forty().append(3)
    lab.log.records[46].tag = "w"
    batch = lab.batches()[0]
    assert lab.active is not None
    offs, lens = zip(*(lab.places[seq] for seq in range(41, 46)), strict=True)
    runs = lab.fetcher.fetch(
        [
            SealedRead(lab.segment(1), range(38, 40)),
            ActiveRead(lab.active, range(41, 46), array("I", offs), array("I", lens)),
            WalRead(46, range(46, 49), batch.offs, batch.lens),
        ]
    ).runs
    assert [seqs(run) for run in runs] == [[39, 40], [41, 42, 43, 44, 45], [46, 47, 48]]
    assert runs[2].record(0).tag == b"w"


def test_the_active_segment_is_read_whole_in_one_go() -> None:
    lab = new_lab(rules=FORTY).append(30).checkpoint()
    preads: list[str] = []
    lab.faults.hook = lambda call: preads.append(call.kind) if call.kind == "pread" else None
    offs, lens = zip(*(lab.places[seq] for seq in range(1, 31)), strict=True)
    assert lab.active is not None
    assert len(lab.fetcher.fetch([ActiveRead(lab.active, range(1, 31), offs, lens)]).runs[0]) == 30
    assert preads == ["pread"]


def test_a_short_pread_is_continued() -> None:
    lab = new_lab().append(3).checkpoint()
    lab.faults.short("pread", "*.data", keep=3)
    assert lab.served() == lab.log.live()


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seq", [1, 20, 40])
def test_damage_in_a_long_run_ends_it_in_front_of_the_damaged_record(seq: int) -> None:
    lab = forty().snapshot().trim_wal()
    entry = read_idx(lab.disk.contents("data/topics/0000000A/seg-0000000000000001.idx"))[seq - 1]
    lab = lab.tamper(data_path(1), flip_bit(int(entry["offset"]) + 40)).restart()
    if seq == 1:
        with pytest.raises(CorruptSegment):
            lab.fetcher.fetch([SealedRead(lab.segment(1), range(40))])
    else:
        result = lab.fetcher.fetch([SealedRead(lab.segment(1), range(40)), SealedRead(lab.segment(1), range(40))])
        assert len(result.parts) == 1
        assert result.parts[0].seq_next == seq
        assert seqs(result.runs[0]) == list(range(1, seq))
    if seq < 40:
        rest = lab.fetcher.fetch([SealedRead(lab.segment(1), range(seq, 40))]).runs[0]
        assert seqs(rest) == list(range(seq + 1, 41))


def test_damage_in_the_active_segment_is_corruption_of_that_record() -> None:
    lab = new_lab(rules=FORTY).append(30).checkpoint()
    off, _ = lab.places[7]
    lab.tamper(data_path(1), flip_bit(off + 40))
    assert lab.served() == lab.log.live() | {7: b"corrupt"}
    offs, lens = zip(*(lab.places[seq] for seq in range(1, 31)), strict=True)
    assert lab.active is not None
    part = lab.fetcher.fetch([ActiveRead(lab.active, range(1, 31), offs, lens)]).parts[0]
    assert (seqs(part.run), part.seq_next) == ([1, 2, 3, 4, 5, 6], 7)


@pytest.mark.parametrize("at", [0, 5, 14, 40, -1])
def test_damaged_log_bytes_are_a_read_error_and_never_served(at: int) -> None:
    made = encode_appends(topic_id=1, first_seq=1, ts=5, datas=[b'{"d":1}'] * 3, durable=False)
    damaged = flip_bit(at)(made.buffer)
    fetcher = Fetcher(read_wal=lambda _, offset, length: damaged[offset : offset + length])
    with pytest.raises(StorageIo):
        fetcher.fetch([WalRead(0, range(1, 4), made.offsets, made.lengths)])


def test_a_log_location_of_another_record_is_never_served() -> None:
    made = encode_appends(topic_id=1, first_seq=1, ts=5, datas=[b'{"d":1}'] * 3, durable=False)
    fetcher = Fetcher(read_wal=lambda _, offset, length: made.buffer[offset : offset + length])
    with pytest.raises(StorageIo):
        fetcher.fetch([WalRead(0, range(2, 5), made.offsets, made.lengths)])


def test_a_read_planned_on_an_active_segment_that_was_sealed_and_rewritten_is_planned_again() -> None:
    lab = new_lab().append(3).checkpoint()
    stale, place = lab.active, lab.places[3]
    assert stale is not None
    lab.append(3).checkpoint()
    assert seqs(lab.fetcher.fetch([ActiveRead(stale, range(3, 4), [place[0]], [place[1]])]).runs[0]) == [3]
    lab.delete(1).snapshot()
    assert rewrite(lab.segment(1), np.array([True, False, False, False, False]))
    with pytest.raises(RecordsMoved):
        lab.fetcher.fetch([ActiveRead(stale, range(3, 4), [place[0]], [place[1]])])


# --- the quick path agrees with the decoder ---------------------------------------------------------------------------

_SAMPLE = forty()
_DATA = _SAMPLE.disk.contents(data_path(1))
_IDX = _SAMPLE.disk.contents("data/topics/0000000A/seg-0000000000000001.idx")


@pytest.mark.timeout(900)
@given(
    damage=st.lists(st.tuples(st.integers(0, len(_DATA) - 1), st.integers(1, 255)), max_size=3),
    idx_damage=st.lists(st.tuples(st.integers(0, len(_IDX) - 1), st.integers(1, 255)), max_size=2),
    slots=st.lists(st.integers(0, 39), min_size=1, max_size=8, unique=True).map(sorted),
    cut=st.integers(0, 100),
)
def test_records_are_read_as_the_decoder_reads_them_or_left_to_it(
    damage: list[tuple[int, int]], idx_damage: list[tuple[int, int]], slots: list[int], cut: int
) -> None:
    data, idx = bytearray(_DATA), bytearray(_IDX)
    for at, mask in damage:
        data[at] ^= mask
    for at, mask in idx_damage:
        idx[at] ^= mask
    view = memoryview(bytes(data[: len(data) - cut]))
    pair = SegmentArrays(read_idx(bytes(idx)), view)
    quick = run_of_slots(pair, np.array(slots), 1)
    found = decode_columns(view, pair.entries, first_seq=1, slots=slots, want=("node",))
    if quick is None:
        assert damage or idx_damage or cut
    else:
        assert not found.bad
        assert seqs(quick) == found.seq.tolist()
        assert quick.flags == (found.flags & 3).tobytes()


@pytest.mark.timeout(900)
@given(
    damage=st.lists(st.tuples(st.integers(0, len(_DATA) - 1), st.integers(1, 255)), max_size=2),
    idx_damage=st.lists(st.tuples(st.integers(0, len(_IDX) - 1), st.integers(1, 255)), max_size=2),
    count=st.integers(1, 40),
    cut=st.integers(-1, 2),
)
def test_a_short_segment_is_taken_as_the_decoder_takes_it_or_left_to_it(
    damage: list[tuple[int, int]], idx_damage: list[tuple[int, int]], count: int, cut: int
) -> None:
    data, idx = bytearray(_DATA), bytearray(_IDX)
    for at, mask in damage:
        data[at] ^= mask
    for at, mask in idx_damage:
        idx[at] ^= mask
    whole = read_idx(_IDX)[:count]
    data_len = int(whole["offset"][-1] + whole["len"][-1])
    stored, index = bytes(data[: data_len - cut]), bytes(idx[: count * 20 - cut])
    few = few_slots(index, stored, first_seq=1, count=count, data_len=data_len)
    if few is None:
        assert damage or idx_damage or cut
        return
    end = judge_open_end(memoryview(index), memoryview(stored), first_seq=1, marked_count=count, marked_len=data_len)
    assert (end.count, end.data_len, end.bad, end.torn, end.reindexed) == (count, data_len, None, False, False)
    assert few.sizes.tolist() == accounted_sizes(end.entries, stored, first_seq=1).tolist()
    assert few.tags == frame_tags(end.entries, stored, first_seq=1)
    assert not (end.entries["flags"] & 4).any()


def test_a_start_asks_the_decoder_for_no_short_segment_that_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = new_lab(rules=FORTY).append(5, tag="a").append(3).checkpoint()
    monkeypatch.setattr("topics.storage.segments.loading.load.judge_open_end", None)
    loaded = lab.restart().loaded
    assert loaded.active is not None
    assert loaded.active.tags == [b"a"] * 5 + [None] * 3


@given(gaps=st.lists(st.tuples(st.sampled_from([0, 1, GAP_BYTES_MAX, GAP_BYTES_MAX + 1, 9000]), st.integers(1, 50))))
def test_spans_give_every_piece_whatever_lies_between(gaps: list[tuple[int, int]]) -> None:
    offs, lens, at = [], [], 0
    for gap, length in gaps:
        at += gap
        offs.append(at)
        lens.append(length)
        at += length
    file = Random(len(gaps)).randbytes(at)
    calls = 0

    def read(offset: int, length: int) -> bytes:
        nonlocal calls
        calls += 1
        return file[offset : offset + length]

    found = read_spans(read, np.array(offs, np.int64), np.array(lens, np.int64))
    for off, length, new in zip(offs, lens, found.offs.tolist(), strict=True):
        assert found.buffer[new : new + length] == file[off : off + length]
    assert calls <= 1 + sum(gap > GAP_BYTES_MAX for gap, _ in gaps)


def test_a_span_that_ends_early_is_a_read_error() -> None:
    with pytest.raises(StorageIo):
        read_spans(lambda offset, length: b"", np.array([0]), np.array([4]))


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_mappings_beyond_the_index_cache_are_closed_and_their_readers_keep_them() -> None:
    lab = new_lab(rules=SealRules(max_events=10)).append(200).checkpoint()
    env = SegmentEnv(lab.fs, HOT, index_cache_bytes=3 * 10 * 20)
    place = TopicDir(env, 10, name="events")
    segments = [SealedSegment(place, first_seq=s.first_seq, count=s.count, data_len=s.data_len) for s in lab.sealed]
    held = [(segment, segment.ts, segment.flags, segment.pair()) for segment in segments]
    assert env.maps.bytes_mapped <= 3 * 10 * 20
    assert len(env.maps) <= 3
    for segment, ts, flags, pair in held:
        assert ts.tolist() == segment.ts.tolist()
        assert not flags.any()
        assert len(pair.entries) == segment.count


def test_a_segment_in_use_outlives_those_that_are_not() -> None:
    lab = new_lab(rules=SealRules(max_events=10)).append(200).checkpoint()
    env = SegmentEnv(lab.fs, HOT, index_cache_bytes=4 * 10 * 20)
    place = TopicDir(env, 10)
    segments = [SealedSegment(place, first_seq=s.first_seq, count=s.count, data_len=s.data_len) for s in lab.sealed]
    favourite = segments[0].pair()
    for segment in segments[1:]:
        segment.pair()
        assert segments[0].pair() is favourite


def test_open_files_are_bounded_and_never_closed_under_a_reader() -> None:
    fs = SimFs()
    for name in range(20):
        fs.plant(f"d/{name}", b"%d" % name)
    files = SegmentEnv(fs, "d").files
    files._limit = 4
    with files.borrow("d/0") as first:
        for name in range(20):
            with files.borrow(f"d/{name}") as file:
                assert file.pread(0, 9) == b"%d" % name
        assert first.pread(0, 9) == b"0"
    assert len(files._held) <= 5


def test_a_forgotten_name_is_opened_anew_while_its_reader_keeps_the_old_file() -> None:
    fs = SimFs()
    fs.plant("d/a", b"old")
    fs.plant("d/b", b"new")
    files = SegmentEnv(fs, "d").files
    with files.borrow("d/a") as old:
        fs.rename("d/b", "d/a")
        files.forget("d/a")
        with files.borrow("d/a") as new:
            assert (old.pread(0, 9), new.pread(0, 9)) == (b"old", b"new")
    files.close()


# --- many threads -----------------------------------------------------------------------------------------------------


def test_readers_get_the_right_bytes_while_the_segment_is_flipped_rewritten_and_moved(tmp_path: Path) -> None:
    fs = OsFs(str(tmp_path))
    source = new_lab(rules=SealRules(max_events=200), cold=True).append(200, tag="t").checkpoint()
    for part in ("data", "idx"):
        fs_path = f"{HOT}/0000000A/seg-0000000000000001.{part}"
        (tmp_path / fs_path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / fs_path).write_bytes(source.disk.contents(fs_path))
    env = SegmentEnv(fs, HOT)
    env.allow_writes(fs)
    place = TopicDir(env, 10, name="events", cold=LocalStore(fs, f"{COLD}/0000000A"))
    segment = SealedSegment(place, first_seq=1, count=200, data_len=source.sealed[0].data_len)
    flips = DeleteFlags(env)
    blobs = {seq: record.blob for seq, record in source.log.records.items()}
    dead: set[int] = set()
    errors: list[BaseException] = []
    stop = threading.Event()

    def reading(seed: int) -> None:
        rng = Random(seed)
        fetcher = Fetcher(read_wal=lambda *_: b"", cold=ColdCache(1 << 16))
        try:
            while not stop.is_set():
                low = rng.randrange(200)
                wanted = range(low, min(200, low + rng.choice([1, 5, 60])))
                segment.load_index()
                run = fetcher.fetch([SealedRead(segment, wanted)]).runs[0]
                for record in run.records():
                    assert record.blob == blobs[record.seq]
                assert {slot + 1 for slot in wanted} - set(seqs(run)) <= dead
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=reading, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    rng = Random(5)
    try:
        for turn in range(8):
            doomed = rng.sample(sorted(set(range(200)) - {seq - 1 for seq in dead}), 5)
            dead.update(slot + 1 for slot in doomed)
            flips.flip(segment, doomed)
            flips.sync()
            step = turn % 4
            mask = np.array([slot + 1 in dead for slot in range(200)])
            if step == 0:
                assert rewrite(segment, mask)
            elif step == 1:
                assert relocate(segment, lambda moves: None)
            elif step == 2:
                flush_cold_flips(segment)
                assert promote(segment, lambda moves: None)
            assert not errors
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    env.close()
    assert not errors
