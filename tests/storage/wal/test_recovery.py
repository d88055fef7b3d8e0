"""Starting on what a crash left: positions, cuts, refusals (fault matrix G and H as far as the log goes).

Rows are those of `docs/fault-matrix.md`.
"""

from __future__ import annotations

import errno
from random import Random

import pytest
from tests.storage.wal.rig import FLAT, Log, Model, new_log

from topics.storage.wal.file_scan import complete_from_first, count_frames, read_used
from topics.storage.wal.wal_files import LogPosition
from topics.testing import FOREVER, CrashPoints, SimFs


def rotated(count: int = 3) -> Log:
    log = new_log()
    while len(log.numbers()) < count:
        log.send(3)
    return log


def test_replay_begins_at_the_recorded_position() -> None:
    log = rotated()
    position = log.group.position
    later = log.send(2)[0]
    log.starts = {FLAT: position}
    after = log.crash().restart()
    assert after.found() == [later.data]
    assert [file.number for file in after.scans[FLAT].passed] == after.numbers()[:2]
    assert after.scans[FLAT].files[0].start == position.off
    assert after.group.position.file == position.file
    assert after.scans[FLAT].complete is False


def test_the_generation_of_a_file_is_known_even_when_replay_begins_behind_its_open_frame() -> None:
    log = new_log()
    log.send(2)
    log.starts = {FLAT: log.group.position}
    log.send(1)
    after = log.crash().restart()
    assert [scanned.gen for scanned in after.scans[FLAT].files] == [1]


@pytest.mark.parametrize("off", [3000, 4096, 100_000])
def test_a_position_behind_the_end_of_its_file_starts_a_new_file_that_the_next_start_reads(off: int) -> None:  # row 95
    log = new_log()
    log.send(2)
    log.starts = {FLAT: LogPosition(1, off)}
    after = log.crash().restart()
    assert after.scans[FLAT].beyond
    assert after.group.position.file > 1
    sent = after.send(3)[0]
    again = after.crash().restart()
    assert again.found() == [sent.data]
    before = again.dump()
    assert again.kill().restart().dump() == before


def test_a_position_in_a_file_that_is_gone_starts_a_file_above_it() -> None:  # row 95
    log = rotated()
    numbers = log.numbers()
    log.starts = {FLAT: LogPosition(5000, 84)}
    after = log.crash().restart()
    assert after.scans[FLAT].beyond
    assert after.group.position.file == 5001
    sent = after.send(3)[0]
    again = after.crash().restart()
    assert again.found() == [sent.data]
    assert again.scans[FLAT].end.kind == "clean"
    assert again.numbers() == [*numbers, 5001]


def test_a_group_without_files_starts_above_what_any_kept_snapshot_recorded() -> None:
    log = new_log(recorded={FLAT: 700})
    assert log.numbers() == [701]
    sent = log.send(1)[0]
    log.starts = {FLAT: LogPosition(700, 4000)}  # the older of the two snapshots
    assert log.crash().restart().found() == [sent.data]


def test_the_file_of_the_recorded_position_gone_with_files_behind_it_is_damage() -> None:
    log = rotated()
    first, second, third = log.numbers()
    log.disk.erase(log.path(second))
    log.starts = {FLAT: LogPosition(second, 500)}
    after = log.crash().restart()
    end = after.scans[FLAT].end
    assert (end.kind, end.reason) == ("damage", "file missing")
    assert end.highest == {1: log.next_seq[FLAT] - 1}
    assert after.group.position.file == second + 1
    assert f"wal-{third:016d}.log.at-0" in after.quarantine()
    sent = after.send(2)[0]
    again = after.crash().restart()
    assert again.found() == [sent.data]
    assert again.scans[FLAT].end.kind == "clean"
    assert first in again.numbers()


def test_what_a_reader_saw_after_a_kill_survives_a_later_power_cut() -> None:  # row 100
    log = new_log()
    log.send(1)
    log.send(2, 3, durable=False)
    after = log.kill().restart().checked()
    assert len(after.found()) == 3
    assert len(after.crash("lose_all").twice().found()) == 3


@pytest.mark.parametrize("kind", ["truncate", "fsync"])
def test_when_the_cut_fails_the_start_fails_and_the_next_one_cuts_at_the_same_place(kind: str) -> None:  # row 101
    log = new_log()
    log.send(2)
    tail = log.group.position.off
    log.write(*log.make(3, durable=False))
    log.crash("flip")
    attempt = log.next()
    attempt.faults.fail(kind, "*/wal-*.log")  # type: ignore[arg-type]
    with pytest.raises(OSError):
        attempt.start()
    assert not attempt.groups
    for pattern in ("lose_all", "keep_all"):
        twin = Log(attempt.disk.clone(), Model({FLAT: [*log.model.sent[FLAT][:1]]}))
        twin.crash(pattern)
        assert twin.twice().group.position.off == tail


def test_without_space_to_allocate_again_the_group_starts_read_only() -> None:  # row 102
    log = new_log()
    log.send(2)
    after = log.crash().next()
    full = after.faults.fail("allocate", code=errno.ENOSPC, times=FOREVER)
    after.start().checked()
    assert after.group.read_only == "no_space"
    assert after.group.probe_space() is False
    full.lift()
    assert after.group.probe_space() is True
    after.send(3)
    after.crash().twice()


def test_a_start_cuts_and_syncs_before_it_allocates_again() -> None:
    log = new_log()
    log.send(2)
    log.write(*log.make(3, durable=False))
    after = log.crash("flip").restart()
    calls = [call.kind for call in after.faults.trace if call.path == log.path(1)]
    changing = [kind for kind in calls if kind in ("truncate", "fsync", "datasync", "allocate", "pwrite")]
    assert changing == ["truncate", "fsync", "allocate", "fsync"]


def test_what_was_replayed_is_durable_even_without_space_to_allocate_again() -> None:
    log = new_log()
    log.send(1)
    log.send(2, 3, durable=False)
    after = log.kill().next()
    after.faults.fail("allocate", code=errno.ENOSPC, times=FOREVER)
    after.start().checked()
    assert len(after.crash("lose_all").twice().found()) == 3


def test_without_space_for_the_very_first_file_the_group_starts_read_only() -> None:
    log = Log(SimFs())
    full = log.faults.fail("allocate", code=errno.ENOSPC, times=FOREVER)
    log.start()
    assert log.group.read_only == "no_space"
    assert log.group.active is None
    assert log.group.position == (1, 0)
    full.lift()
    assert log.group.probe_space()
    log.send(3)
    log.crash().twice()


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("kind", ["listdir", "open", "is_dir", "size", "pread"])
def test_an_error_while_looking_stops_the_start_and_is_never_taken_for_empty(kind: str, code: int) -> None:  # row 103
    log = rotated(2)
    before = log.dump()
    log.crash()
    struck = 0
    for at in range(1, 30):
        attempt = log.next()
        fault = attempt.faults.fail(kind, "data/wal*", code=code, at=at)  # type: ignore[arg-type]
        try:
            attempt.start()
        except OSError as error:
            assert error.errno == code
            struck += 1
        log = attempt.kill()
        if not fault.hits:
            break
        assert log.dump() == before
    assert struck
    log.restart().checked()


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_a_directory_that_cannot_be_made_stops_the_start(code: int) -> None:  # row 103
    for at in range(1, 5):
        log = Log(SimFs())
        log.faults.fail("mkdir", code=code, at=at)
        with pytest.raises(OSError):
            log.start()


def torn_log(seed: int = 2) -> Log:
    log = rotated(2)
    log.send(2)
    log.write(*log.make(1, 3, 2, durable=False))
    return log.crash("reorder" if seed % 2 else "flip", seed)


@pytest.mark.parametrize("seed", range(4))
def test_a_crash_at_any_call_of_a_start_and_again_at_any_call_of_the_next_converges(seed: int) -> None:  # row 99
    log = torn_log(seed)
    wanted = Log(log.disk.clone(), Model({FLAT: [*log.model.sent[FLAT]]})).start()
    found, place = wanted.found(), wanted.group.position
    sents = [*log.model.sent[FLAT]]
    rng = Random(seed)
    count = 0
    for first in started_states(Log(log.disk.clone(), Model({FLAT: [*sents]})), rng):
        for second in started_states(Log(first, Model({FLAT: [*sents]})), rng, sample=2):
            after = Log(second, Model({FLAT: [*sents]})).start()
            assert (after.found(), after.group.position) == (found, place)
            count += 1
    assert count > 20


def started_states(log: Log, rng: Random, sample: int = 0) -> list[SimFs]:
    points = CrashPoints(log.disk)
    log.faults.hook = points.before
    log.start()
    points.end()
    states = [state.disk for state in points.states(rng=rng, patterns=("lose_all", "reorder", "random"))]
    return rng.sample(states, min(sample, len(states))) if sample else states


def test_a_log_is_complete_only_from_frame_one_of_the_first_layout() -> None:  # row 92 as far as files go
    log = rotated()
    assert complete_from_first([log.crash().restart().scans[FLAT]])
    log = log.next()
    log.disk.erase(log.path(1))
    log.start()
    assert not complete_from_first([log.scans[FLAT]])
    assert complete_from_first([])


def test_frames_are_counted_by_their_lengths() -> None:
    log = new_log()
    log.send(1, 3)
    data = log.disk.contents(log.path(1))
    tail = log.group.position.off
    assert count_frames(data, tail) == (5, True)
    assert count_frames(data, 0) == (0, True)
    assert count_frames(data, tail - 1)[1] is False
    assert count_frames(data, 10_000)[1] is False
    assert count_frames(b"", 0) == (0, True)


def test_buffers_beyond_the_budget_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.storage.wal.file_scan.BUFFERS_KEPT_BYTES", 4000)
    log = rotated()
    after = log.crash().restart().checked()
    kept = [scanned._buffer is not None for scanned in after.scans[FLAT].files]
    assert kept == [True, False, False]
    after.scans[FLAT].files[0].release()
    assert len(after.found()) == len(after.model.sent[FLAT])
    found = sum(len(scanned.columns) for scanned in after.scans[FLAT].files)
    assert found == sum(s.count for s in after.model.sent[FLAT]) + 3


def test_only_the_used_part_of_a_file_is_held() -> None:
    disk = SimFs()
    for used, size in [(b"", 0), (b"", 5 << 20), (b"x" * 100, 5 << 20), (b"x" * (3 << 20), 3 << 20), (b"x", 1)]:
        for tail in (b"", b"y" + bytes(5)):
            disk.plant("file", (used + tail).ljust(size, b"\0"))
            buffer = read_used(disk.open("file"))
            whole = disk.contents("file")
            assert whole.startswith(buffer)
            assert not whole[len(buffer) :].strip(b"\0")
            step = 1 << 20
            assert len(buffer) <= min(len(whole), -(-len(used + tail) // step) * step + 64)
            assert len(buffer) >= min(len(whole), len(used + tail) + 8)
