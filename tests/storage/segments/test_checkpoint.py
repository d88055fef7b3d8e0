"""Checkpoint and seal (fault matrix E, as far as segment files go)."""

from __future__ import annotations

import errno

import pytest
from tests.storage.segments.lab import DIR, HOT, T0, Lab, crashes, data_path, flip_bit, idx_path, new_lab

from topics.formats.segments.idx import ENTRY_BYTES
from topics.storage.checkpoint.absorb import SealRules, run
from topics.storage.fs import read_file
from topics.testing.powercut import NamesLost, torn_at

PARTS = ["*.data", "*.idx"]


def test_records_move_into_the_active_segment_and_are_served_from_there() -> None:
    lab = new_lab().append(3, tag="a").checkpoint()
    assert lab.names() == ["seg-0000000000000001.data", "seg-0000000000000001.idx"]
    assert lab.served() == lab.log.live()
    assert lab.log.expected.active == (1, 3, lab.fs.stat_len(data_path(1)))
    lab.checked()


def test_a_restart_finds_what_was_marked() -> None:
    lab = new_lab().append(12, tag="a").checkpoint()
    again = lab.power_cut()
    assert [(s.first_seq, s.count) for s in again.sealed] == [(1, 5), (6, 5)]
    assert again.active is not None
    assert again.active.mark == lab.log.expected.active
    again.checked()


def test_segment_bytes_are_the_log_frame_without_type_and_topic() -> None:
    lab = new_lab().append(1, tag="order-7").checkpoint()
    frame = lab.log.records[1].frame()
    stored = read_file(lab.fs, data_path(1))
    assert stored[5 : len(stored) - 9] == frame[14 : len(frame) - 8]
    assert stored[-1] == 0


def test_a_checkpoint_of_any_number_of_segments_has_few_files_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.storage.checkpoint.absorb.OPEN_SEGMENTS_MAX", 4)
    lab = new_lab(rules=SealRules(max_events=1)).append(3).checkpoint().append(40)
    disk, most = lab.disk.disk, 0
    hold = disk.hold

    def hold_and_count(number: int) -> None:
        nonlocal most
        hold(number)
        most = max(most, sum(disk.held.values()))

    monkeypatch.setattr(disk, "hold", hold_and_count)
    lab.checkpoint()
    assert most <= 2 * 4 + 2
    lab.power_cut().checked()


def test_a_checkpoint_that_fails_in_a_later_portion_takes_all_of_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.storage.checkpoint.absorb.OPEN_SEGMENTS_MAX", 2)
    lab = new_lab(rules=SealRules(max_events=2)).append(3).checkpoint()
    before = lab.files()
    lab.append(12).faults.fail("datasync", "*.data", at=4)
    with pytest.raises(OSError):
        run(lab.job())
    assert lab.files() == before
    lab.checkpoint().power_cut().checked()


def test_a_crash_at_every_call_of_a_checkpoint_in_portions_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.storage.checkpoint.absorb.OPEN_SEGMENTS_MAX", 1)
    for state, lab in crashes(lambda lab: lab.append(3).checkpoint().append(4), lambda lab: lab.checkpoint()):
        assert lab.served() == lab.log.live(), state
        lab.checked().checkpoint().checked()


# --- 65: every call -------------------------------------------------------------------------------------------------


def test_a_crash_at_every_call_of_a_checkpoint_loses_nothing_and_makes_no_second_slot() -> None:
    states = 0
    for state, lab in crashes(lambda lab: lab.append(3).checkpoint().append(9), lambda lab: lab.checkpoint()):
        states += 1
        assert lab.served() == lab.log.live(), state
        lab.checked().checkpoint().checked()
    assert states > 100


def test_a_crash_at_every_call_of_the_start_after_a_torn_checkpoint_ends_in_the_same_state() -> None:
    def prepare(lab: Lab) -> Lab:
        lab.append(3).checkpoint().append(9)
        lab.faults.fail("datasync", "*.idx", at=2)
        with pytest.raises(OSError):
            run(lab.job())
        return lab

    for _, lab in crashes(prepare, lambda lab: None):
        lab.checked().checkpoint().checked()


# --- 66, 67: failures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PARTS)
def test_a_short_write_is_continued(path: str) -> None:
    lab = new_lab().append(3)
    lab.faults.short("pwrite", path, keep=7)
    plain = new_lab().append(3).checkpoint()
    assert lab.checkpoint().files() == plain.files()


@pytest.mark.parametrize("path", PARTS)
@pytest.mark.parametrize("kind", ["pwrite", "datasync", "create"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("at", [1, 2])
def test_a_failed_step_is_abandoned_cut_back_and_done_anew(path: str, kind: str, code: int, at: int) -> None:
    lab = new_lab().append(3).checkpoint().append(9)
    before, marked = lab.files(), lab.log.expected.active
    fault = lab.faults.fail(kind, path, code=code, at=at)  # type: ignore[arg-type]
    if kind == "create" and at == 2:
        fault.lift()  # this checkpoint makes one more of each file; there is no second to fail
        return
    with pytest.raises(OSError):
        lab.checkpoint()
    assert lab.files() == before
    assert lab.log.expected.active == marked
    assert lab.served() == lab.log.live()
    lab.checkpoint().checked()
    lab.power_cut().checked()


@pytest.mark.parametrize("path", [DIR, HOT])
def test_a_failed_directory_sync_fails_the_checkpoint(path: str) -> None:
    lab = new_lab().append(3)
    lab.faults.fail("sync_dir", path)
    with pytest.raises(OSError):
        lab.checkpoint()
    lab.checkpoint()
    lab.power_cut().checked()


def test_a_cut_that_fails_too_is_made_up_for_by_the_next_checkpoint() -> None:
    lab = new_lab().append(3).checkpoint().append(1)
    lab.faults.fail("datasync", "*.data")
    lab.faults.fail("truncate", "*")
    with pytest.raises(OSError):
        lab.checkpoint()
    lab.checkpoint()
    lab.power_cut().checked()


def test_a_disk_that_fills_up_and_is_freed_loses_nothing() -> None:
    lab = new_lab().append(3).checkpoint().append(9)
    full = lab.faults.fill_disk()
    for _ in range(3):
        with pytest.raises(OSError):
            lab.checkpoint()
        assert lab.served() == lab.log.live()
    full.lift()
    lab.checkpoint().checked()


def test_a_mark_that_cannot_be_logged_takes_the_checkpoint_back() -> None:
    lab = new_lab().append(3).checkpoint().append(9)
    before = lab.files()
    run(lab.job()).abandon()
    assert lab.files() == before
    lab.checkpoint().checked()


# --- 68 to 73: power cuts -------------------------------------------------------------------------------------------


def _crashed_before(lab: Lab, kind: str, path: str, at: int = 1) -> Lab:
    lab.faults.fail(kind, path, error=KeyboardInterrupt(), at=at)  # type: ignore[arg-type]
    lab.faults.fail(("truncate", "unlink"), "*", times=99)  # a process that is gone cuts nothing back
    with pytest.raises(KeyboardInterrupt):
        run(lab.job())
    return lab


@pytest.mark.parametrize("n", range(3 * ENTRY_BYTES + 1))
def test_an_index_append_torn_at_any_byte_is_cut_and_restored(n: int) -> None:
    lab = _crashed_before(new_lab().append(1).checkpoint().append(3), "datasync", "*.idx")
    again = lab.power_cut(torn_at(n, "*.idx"))
    assert again.active is not None
    assert again.active.count == 1 + n // ENTRY_BYTES
    again.checked().checkpoint().checked()


def test_frames_that_have_no_entry_yet_are_cut() -> None:
    lab = _crashed_before(new_lab().append(1).checkpoint().append(3), "pwrite", "*.idx")
    again = lab.power_cut()
    assert again.active is not None
    assert again.active.count == 1
    assert again.fs.stat_len(data_path(1)) == again.active.data_len
    again.checked().checkpoint().checked()


@pytest.mark.parametrize("path", [data_path(1), idx_path(1)])
@pytest.mark.parametrize("zeros", [1, 19, 20, 40, 200, 5000])
def test_a_zero_filled_tail_is_cut_and_not_taken_for_slots(path: str, zeros: int) -> None:
    lab = new_lab().append(3).checkpoint()
    lab.tamper(path, lambda data: data + bytes(zeros))
    again = lab.restart()
    assert again.active is not None
    assert again.active.mark == lab.log.expected.active
    again.append(4).checkpoint().checked()


@pytest.mark.parametrize("name", ["seg-*.data", "seg-*.idx", "seg-*", "0000000A"])
def test_names_lost_before_the_directory_sync_come_back_from_the_log(name: str) -> None:
    lab = _crashed_before(new_lab().append(7), "sync_dir", "*")
    again = lab.power_cut(NamesLost(name))
    again.checked().checkpoint().checked()


def test_a_lost_mark_makes_no_second_slot() -> None:
    lab = new_lab().append(3).checkpoint().append(9)
    run(lab.job())
    again = lab.power_cut()
    assert again.last_slot == 12
    again.checked().append(1).checkpoint().checked()


@pytest.mark.parametrize("seq", [4, 5, 8, 12])
def test_a_bad_frame_above_the_mark_is_a_torn_tail(seq: int) -> None:
    lab = new_lab().append(3).checkpoint().append(9)
    (topic,) = run(lab.job()).topics
    first = max(segment.first_seq for segment in [*topic.sealed, topic.active] if segment and segment.first_seq <= seq)
    at = int.from_bytes(lab.disk.contents(idx_path(first))[(seq - first) * 20 :][:4], "little")
    again = lab.tamper(data_path(first), flip_bit(at + 40)).restart()
    assert again.last_slot == seq - 1
    again.checked().checkpoint().checked()


def test_a_mark_without_the_switch_of_locations_is_as_good() -> None:
    lab = new_lab().append(3).checkpoint().append(9)
    lab.mark(run(lab.job()))
    lab.power_cut().checked().append(1).checkpoint().checked()


@pytest.mark.parametrize(("kind", "path"), [("datasync", "*.idx"), ("sync_dir", DIR), ("sync_dir", HOT)])
@pytest.mark.parametrize("count", [1, 9])
def test_what_a_killed_checkpoint_left_unsynced_is_synced_before_it_counts(kind: str, path: str, count: int) -> None:
    lab = _crashed_before(new_lab().append(count), kind, path)
    again = lab.restart()  # a kill: entries and names are in memory only
    assert again.last_slot == count
    again.append(1).checkpoint().trim_wal()
    after = again.power_cut()
    assert after.served() == after.log.live()
    assert after.env.counters.idx_rebuilt == 0
    after.checked()


# --- 74: seals ------------------------------------------------------------------------------------------------------

SEALS = {
    "count": (SealRules(max_events=4), lambda lab: lab.append(3).checkpoint().append(6)),
    "bytes": (SealRules(max_bytes=200), lambda lab: lab.append(2).checkpoint().append(9)),
    "lost range": (SealRules(), lambda lab: lab.append(3).checkpoint().append(2, gap=40)),
    "age": (SealRules(max_age_ms=1000), lambda lab: _aged(lab.append(3).checkpoint()).append(2)),
}


def _aged(lab: Lab) -> Lab:
    lab.now_ms += 1000
    return lab


@pytest.mark.parametrize("trigger", SEALS)
def test_a_crash_around_a_seal_leaves_segments_dense_and_disjoint(trigger: str) -> None:
    rules, prepare = SEALS[trigger]
    sealed = 0
    for _, lab in crashes(prepare, lambda lab: lab.checkpoint(), rules=rules):
        lab = lab.checked().checkpoint().checked()
        sealed += bool(lab.sealed)
    assert sealed


def test_a_segment_seals_at_its_record_count_and_not_before() -> None:
    lab = new_lab(rules=SealRules(max_events=4)).append(3).checkpoint()
    assert not lab.sealed
    lab.append(1).checkpoint()
    assert [(s.first_seq, s.count) for s in lab.sealed] == [(1, 4)]
    assert lab.active is None
    assert lab.log.expected.sealed_to == 4


def test_a_segment_seals_with_the_record_that_reaches_its_size() -> None:
    one = len(read_file(new_lab().append(1).checkpoint().fs, data_path(1)))
    lab = new_lab(rules=SealRules(max_bytes=2 * one + 1)).append(7).checkpoint()
    assert [s.count for s in lab.sealed] == [3, 3]


def test_an_idle_segment_seals_by_age_without_a_byte_written() -> None:
    lab = new_lab(rules=SealRules(max_age_ms=1000)).append(3).checkpoint()
    before = lab.files()
    lab.now_ms += 999
    assert not lab.checkpoint().sealed
    lab.now_ms += 1
    assert [s.count for s in lab.checkpoint().sealed] == [3]
    assert lab.files() == before
    lab.append(1).checkpoint().checked()


def test_an_old_backlog_does_not_become_a_segment_per_record() -> None:
    lab = new_lab(rules=SealRules(max_age_ms=1000)).append(50)
    lab.now_ms = T0 + 10_000
    lab.checkpoint()
    assert not lab.sealed
    assert lab.active is not None
    assert lab.active.count == 50


def test_a_sealed_segment_has_its_sidecar_at_once() -> None:
    lab = new_lab().append(5, tag="a").checkpoint()
    assert "seg-0000000000000001.tags" in lab.names()


# --- 75: damage below the mark --------------------------------------------------------------------------------------


def _damaged_active() -> Lab:
    lab = new_lab().append(4).checkpoint().append(2)
    assert lab.active is not None
    off, length = lab.places[2]
    lab.tamper(data_path(1), flip_bit(off + length // 2))
    return lab


def test_a_flipped_bit_below_the_mark_is_repaired_from_the_log() -> None:
    lab = _damaged_active().restart()
    assert lab.served() == lab.log.live()
    lab.trim_wal().checkpoint().checked()


def test_a_flipped_bit_below_the_mark_without_the_log_is_corruption_of_that_seq_only() -> None:
    lab = _damaged_active().trim_wal()
    before = lab.files()[data_path(1)]
    again = lab.restart()
    assert again.served() == lab.log.live() | {2: b"corrupt"}
    again.checkpoint()
    assert again.served() == lab.log.live() | {2: b"corrupt"}
    assert again.files()[data_path(1)] == before
    assert any(finding.severity == "error" for finding in again.findings)
    assert again.restart().served() == lab.log.live() | {2: b"corrupt"}
