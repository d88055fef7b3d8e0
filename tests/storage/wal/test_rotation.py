"""Rotation, `CURRENT`, and files that come, go or are missing (fault matrix B).

Rows are those of `docs/fault-matrix.md`.
"""

from __future__ import annotations

import errno
from random import Random

import pytest
from tests.storage.wal.rig import FLAT, SHORT_PATTERNS, WAL, Log, Model, new_log

from topics.errors import CommitFailed, WalMissing
from topics.storage.wal import rotation
from topics.storage.wal.rotation import Layout
from topics.testing import FOREVER, CrashPoints, SimCrash, SimFs
from topics.testing.powercut import NamesLost, torn_at


def filled(**kwargs: object) -> Log:
    """A log whose active file is nearly full: the next submission of three rotates."""
    log = new_log(**kwargs)
    while log.group.fits(300):
        log.send(1)
    return log


def rotated() -> Log:
    """Three files, the last one active."""
    log = new_log()
    while len(log.numbers()) < 3:
        log.send(3)
    return log


def test_a_file_is_named_after_its_first_frame() -> None:
    log = rotated()
    first, second, third = log.numbers()
    assert first == 1
    sent = log.model.sent[FLAT]
    assert second == 1 + 1 + sum(s.count for s in sent if log.files.get(s.sub.file).number == 1)
    assert third == second + 1 + sum(s.count for s in sent if log.files.get(s.sub.file).number == second)
    assert log.disk.contents("data/wal/CURRENT") == f"wal-{third:016d}.log\n".encode()
    log.crash().twice()


def test_files_grow_with_the_log_and_go_on_growing_after_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "FIRST_FILE_BYTES", 1024)
    log = new_log()
    while len(log.numbers()) < 4:
        log.send(3)
    sizes = [log.disk.stat_len(f"data/wal/wal-{number:016d}.log") for number in log.numbers()]
    assert sizes == [1024, 2048, 4096, 4096]
    log.crash().twice()
    young = new_log()
    young.send(3)
    again = young.crash().twice()
    again.send(3)
    assert again.disk.stat_len("data/wal/wal-0000000000000001.log") == 1024


def test_a_batch_beyond_the_size_of_a_file_fits_into_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "FIRST_FILE_BYTES", 1024)
    for count in range(1, 60):
        log = new_log()
        log.send(count)
        log.send(1)
        log.crash().twice()


def test_frames_of_a_failed_batch_use_up_no_number() -> None:
    log = filled()
    expected = log.group._next_number
    log.faults.fail("pwrite", WAL, code=errno.ENOSPC)
    with pytest.raises(CommitFailed):
        log.send(1)
    assert log.group.probe_space()
    log.send(3)
    assert log.numbers()[-1] == expected
    log.crash().twice()


def test_the_next_file_is_prepared_when_the_active_one_is_half_full() -> None:
    log = new_log()
    while log.group.position.off <= log.file_bytes // 2:
        assert not log.disk.exists("data/wal/prealloc.tmp")
        log.send(1)
        log.group.prepare_next()
    assert log.disk.stat_len("data/wal/prealloc.tmp") == log.file_bytes
    before = len(log.faults.trace)
    log.group.prepare_next()
    assert len(log.faults.trace) == before  # once is enough
    log.group.rotate()
    assert not log.disk.exists("data/wal/prealloc.tmp")


def test_rotation_goes_in_the_order_of_the_specification() -> None:
    log = filled()
    seen = len(log.faults.trace)
    log.group.rotate()
    calls = [f"{call.kind} {call.path.rpartition('/')[2]}" for call in log.faults.trace[seen:]]
    second = f"wal-{log.numbers()[1]:016d}.log"
    assert [call for call in calls if not call.startswith(("exists", "close"))] == [
        "datasync wal-0000000000000001.log",
        "create prealloc.tmp",
        "allocate prealloc.tmp",
        "pwrite prealloc.tmp",
        "fsync prealloc.tmp",
        f"rename {second}",
        "sync_dir wal",
        "create CURRENT.tmp",
        "pwrite CURRENT.tmp",
        "fsync CURRENT.tmp",
        "rename CURRENT",
        "sync_dir wal",
    ]


def test_rotation_makes_everything_before_it_durable() -> None:
    log = filled()
    log.send(1, durable=False)
    log.group.rotate()
    assert log.group.synced_lsn == log.group.written_lsn
    for sent in log.model.sent[FLAT]:
        sent.state = "synced"
    log.crash("lose_all").twice()


@pytest.mark.parametrize("prepared", [False, True])
def test_a_crash_at_any_call_of_a_rotation_loses_nothing_and_the_next_start_appends(
    prepared: bool,
) -> None:  # rows 27, 28, 29
    log = filled()
    points = CrashPoints(log.disk, note=lambda: [(s, s.state) for s in log.model.sent[FLAT]])
    log.faults.hook = points.before
    if prepared:
        log.group.prepare_next()
    log.send(3)
    log.send(1)
    points.end()
    states = list(points.states(rng=Random(3), patterns=SHORT_PATTERNS))
    assert len(states) > 40
    for state in states:
        model = Model({FLAT: []})
        for sent, known in state.note:  # type: ignore[attr-defined]
            twin = type(sent)(
                sent.sub, sent.data, sent.first_seq, sent.count, known if known != "queued" else "unknown"
            )
            model.sent[FLAT].append(twin)
        after = Log(state.disk, model)
        after.killed = state.how == "kill"
        after.start().checked()
        assert not after.disk.exists("data/wal/prealloc.tmp"), state
        after.send(1)
        after.crash().twice()


def test_a_name_lost_before_its_directory_was_synced_leaves_the_old_file_active() -> None:  # row 28
    log = filled()
    log.faults.crash("sync_dir", "data/wal")
    with pytest.raises(SimCrash):
        log.group.rotate()
    log = log.crash(NamesLost("wal-*")).restart().checked()
    assert log.numbers() == [1]
    log.send(3)
    assert len(log.numbers()) == 2


def test_between_the_name_and_current_the_highest_number_wins() -> None:  # row 29
    log = filled()
    log.faults.crash("create", "*CURRENT.tmp")
    with pytest.raises(SimCrash):
        log.group.rotate()
    log = log.crash("lose_all").restart().checked()
    assert len(log.numbers()) == 2
    assert log.disk.contents("data/wal/CURRENT") == f"wal-{log.numbers()[1]:016d}.log\n".encode()
    log.send(1)
    log.crash().twice()


@pytest.mark.parametrize("text", [None, b"", b"garbage\n", b"wal-0000000000000001.log\n", b"\xff\x00", b"wal-1.log"])
def test_current_is_a_cross_check_and_is_written_anew(text: bytes | None) -> None:  # row 30
    log = rotated()
    if text is None:
        log.disk.erase("data/wal/CURRENT")
    else:
        log.disk.tamper("data/wal/CURRENT", lambda _: text)
    after = log.crash().twice()
    assert after.disk.contents("data/wal/CURRENT") == f"wal-{after.numbers()[-1]:016d}.log\n".encode()


def test_without_space_for_current_a_start_goes_on_and_the_next_file_installs_it() -> None:
    log = rotated()
    log.disk.tamper("data/wal/CURRENT", lambda _: b"wal-0000000000000001.log\n")
    after = log.crash().next()
    full = after.faults.fail("pwrite", "*CURRENT.tmp", code=errno.ENOSPC, times=FOREVER)
    after.start().checked()
    assert full.hits
    assert after.group.read_only == "no_space"
    full.lift()
    assert after.group.probe_space() is True
    after.send(1)
    assert after.disk.contents("data/wal/CURRENT") == f"wal-{after.numbers()[-1]:016d}.log\n".encode()
    after.crash().twice()


def test_current_newer_than_any_file_refuses_and_changes_nothing() -> None:  # row 31
    log = rotated()
    log.disk.erase(log.path(log.numbers()[-1]))
    before = log.dump()
    with pytest.raises(WalMissing, match="TOPICS_SALVAGE"):
        log.crash().restart()
    assert Log(log.disk.reboot()).dump() == before
    log.salvage = True
    log.model.sent[FLAT] = [s for s in log.model.sent[FLAT] if log.files.get(s.sub.file).number < log.numbers()[-1]]
    after = log.restart().checked()
    assert any("CURRENT names" in notice for notice in after.scans[FLAT].notices)
    assert len(after.numbers()) == 2
    after.salvage = False
    assert not after.kill().twice().scans[FLAT].notices  # it named the survivor from then on


def test_without_space_for_the_next_file_the_old_one_is_intact_and_writing_resumes() -> None:  # row 32
    log = filled()
    before = log.disk.contents(log.path(1))
    full = log.faults.fail("allocate", code=errno.ENOSPC, times=FOREVER)
    with pytest.raises(CommitFailed) as caught:
        log.send(3)
    assert (caught.value.outcome, caught.value.cause) == ("not_committed", "no_space")
    assert log.group.probe_space() is False
    assert log.disk.contents(log.path(1)) == before
    assert not log.disk.exists("data/wal/prealloc.tmp")  # nothing half-made keeps space
    full.lift()
    assert log.group.probe_space() is True
    log.send(3)
    assert len(log.crash().twice().numbers()) == 2


def test_a_file_system_without_allocation_gives_the_same_guarantees() -> None:  # row 33
    log = Log(SimFs())
    log.faults.fail("allocate", code=errno.EOPNOTSUPP, times=FOREVER)
    log.start()
    while len(log.numbers()) < 3:
        log.send(3)
    assert {log.disk.stat_len(log.path(n)) for n in log.numbers()} == {log.file_bytes}
    log.send(2, durable=False)
    log.crash("keep_prefix_torn").twice()


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE, errno.EIO])
@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("create", "*prealloc.tmp"),
        ("fsync", "*prealloc.tmp"),
        ("rename", "*.log"),
        ("sync_dir", "*"),
        ("create", "*CURRENT.tmp"),
        ("rename", "*CURRENT"),
    ],
)
def test_a_failure_while_rotating_makes_the_group_read_only(kind: str, path: str, code: int) -> None:  # row 34
    log = filled()
    log.faults.fail(kind, path, code=code)  # type: ignore[arg-type]
    with pytest.raises(CommitFailed) as caught:
        log.send(3)
    is_sync = "sync" in kind and code != errno.EMFILE
    assert (caught.value.outcome, caught.value.cause) == ("not_committed", "sync" if is_sync else "rotate")
    with pytest.raises(CommitFailed):
        log.send(1)
    assert log.group.probe_space() is not is_sync  # a failed sync is never tried again
    if is_sync:
        after = log.kill().twice()
        after.send(3)
        after.crash().twice()
    else:
        assert len(log.numbers()) == 2
        log.send(3)
        log.crash().twice()


def test_a_rotation_is_tried_again_less_and_less_often_and_a_sync_that_fails_on_the_way_ends_that() -> None:
    log = filled()
    fault = log.faults.fail("create", "*prealloc.tmp", code=errno.EMFILE, times=FOREVER)
    with pytest.raises(CommitFailed):
        log.send(3)
    tried = []
    for probe in range(100):
        before = fault.hits
        assert log.group.probe_space() is False
        if fault.hits > before:
            tried.append(probe)
    assert tried == [0, 2, 6, 14, 30, 62, 94]
    fault.lift()
    log.faults.fail("datasync", WAL)
    for _ in range(40):
        assert log.group.probe_space() is False
    assert log.group.read_only in ("rotate", "sync")
    log.kill().twice()


def test_a_failed_sync_of_the_old_file_is_a_failed_sync() -> None:
    log = filled()
    unsynced = log.make(1, durable=True)
    assert log.group.fits(unsynced[0].sub.size)
    log.write(*unsynced)
    log.faults.fail("datasync", WAL)
    with pytest.raises(CommitFailed) as caught:
        log.write(*log.make(3))
    assert caught.value.cause == "sync"
    with pytest.raises(CommitFailed) as waiting:
        log.sync()
    assert waiting.value.outcome == "unknown"
    log.crash("reorder").twice()


@pytest.mark.parametrize(("kind", "path"), [("create", "*CURRENT.tmp"), ("sync_dir", "*"), ("rename", "*CURRENT")])
def test_when_space_returns_a_half_done_rotation_is_finished_before_anything_is_appended(kind: str, path: str) -> None:
    log = filled()
    full = log.faults.fail(kind, path, code=errno.ENOSPC, times=FOREVER)  # type: ignore[arg-type]
    with pytest.raises(CommitFailed):
        log.send(3)
    full.lift()
    assert log.group.probe_space() is True
    assert not log.group.fits(1)  # the next file has its name already; the old one must not grow
    log.send(1)
    assert len(log.numbers()) == 2
    log.crash().twice()


def test_the_first_batch_of_a_new_file_torn_at_any_byte_leaves_open_frame_and_old_file() -> None:  # row 35
    log = filled()
    made = log.make(3)
    log.write(*made)
    number, size = log.group.position.file, made[0].sub.size
    old = log.disk.contents(log.path(1))
    for n in range(size):
        disk = log.disk.clone()
        disk.power_cut(pattern=torn_at(n, f"data/wal/wal-*{number}.log"))
        after = log.next(disk.reboot()).start()
        assert after.group.position == (number, made[0].sub.offset)
        assert after.disk.contents(log.path(1)) == old
        assert len(after.found()) == len(log.model.sent[FLAT]) - 1


def test_a_missing_middle_file_is_damage_and_what_follows_is_set_aside() -> None:  # row 36
    log = rotated()
    log.send(2)
    first, middle, last = log.numbers()
    kept = [s for s in log.model.sent[FLAT] if log.files.get(s.sub.file).number == first]
    highest = log.next_seq[FLAT] - 1
    log.disk.erase(log.path(middle))
    log.model.sent[FLAT] = kept
    after = log.crash().restart().checked()
    end = after.scans[FLAT].end
    assert (end.kind, end.number, end.reason) == ("damage", first, "numbering")
    assert end.highest == {1: highest}
    assert after.numbers() == [first]
    assert not after.disk.exists(log.path(last))
    assert any(name.startswith(f"wal-{last:016d}.log") for name in after.quarantine())
    assert after.next_seq[FLAT] == highest + 1
    before = after.dump()
    after = after.kill().restart().checked()
    assert after.dump() == before
    after.send(3)
    after.crash().twice()


def test_a_file_cut_at_a_frame_is_told_from_a_whole_one_by_its_number() -> None:
    log = rotated()
    first = log.numbers()[0]
    last_of_first = [s for s in log.model.sent[FLAT] if log.files.get(s.sub.file).number == first][-1]
    cut = last_of_first.sub.offset
    log.disk.tamper(log.path(first), lambda data: data[:cut].ljust(len(data), b"\0"))
    log.model.sent[FLAT] = log.model.sent[FLAT][: log.model.sent[FLAT].index(last_of_first)]
    after = log.crash().restart().checked()
    assert after.scans[FLAT].end.kind == "damage"
    assert after.numbers() == [first]


def test_a_file_of_another_group_is_ignored_reported_and_kept() -> None:  # row 39
    log = new_log(shards=2)
    for _ in range(3):
        log.send(3, key="shard-00")
        log.send(2, key="shard-01")
    foreign = log.path(5000, "shard-01")
    log.disk.plant(foreign, log.disk.contents(log.path(1, "shard-00")))
    after = log.crash().twice()
    assert after.numbers("shard-01") == [1]
    assert any("belongs to group 'shard-00'" in notice for notice in after.scans["shard-01"].notices)
    assert after.disk.exists(foreign)


def test_a_foreign_file_with_the_very_next_name_is_moved_and_not_destroyed() -> None:
    log = new_log(shards=2)
    log.send(3, key="shard-01")
    foreign = log.path(5, "shard-01")  # one open frame and three records: the next file is 5
    data = log.disk.contents(log.path(1, "shard-00"))
    log.disk.plant(foreign, data)
    after = log.crash().twice()
    after.groups["shard-01"].rotate()
    after.send(2, key="shard-01")
    assert after.disk.contents(foreign + ".foreign") == data
    after.crash().twice()


def test_a_left_over_group_of_an_older_layout_restored_by_hand_is_ignored() -> None:  # row 39
    old = new_log()
    old.send(3)
    data = old.disk.contents(old.path(1))
    log = new_log(shards=2, snapshot=Layout(4, 2))
    log.send(1, key="shard-00")
    log.disk.plant("data/wal/wal-0000000000000001.log", data)
    after = log.crash().restart()
    assert after.scans[FLAT].files == []
    assert any("older shard layout" in notice for notice in after.scans[FLAT].notices)
    assert after.layout == Layout(4, 2)


@pytest.mark.parametrize("content", [b"", bytes(4096), b"\x01\x02garbage"])
def test_a_last_file_without_any_frame_was_an_interrupted_creation_and_goes(content: bytes) -> None:
    log = new_log()
    log.send(3)
    log.disk.plant(log.path(5), content)
    after = log.crash().twice()
    assert after.numbers() == [1]
    assert not after.disk.exists(log.path(5))
    assert any(name.startswith("wal-0000000000000005.log") for name in after.quarantine()) == bool(content.strip(b"\0"))
    after.send(1)


def test_two_names_of_one_number_the_padded_one_counts() -> None:
    log = new_log()
    log.send(3)
    log.disk.plant("data/wal/wal-1.log", b"something else")
    after = log.crash().twice()
    assert len(after.found()) == 1
    assert after.disk.contents("data/wal/wal-1.log") == b"something else"
    assert any("wal-1.log is ignored" in notice for notice in after.scans[FLAT].notices)


def test_an_unpadded_name_alone_is_read() -> None:
    log = new_log()
    log.send(3)
    data = log.disk.contents(log.path(1))
    log.disk.erase(log.path(1))
    log.disk.plant("data/wal/wal-1.log", data)
    assert len(log.crash().twice().found()) == 1
