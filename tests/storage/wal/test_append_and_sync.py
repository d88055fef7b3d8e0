"""Writing and syncing one group, and every way that can fail (fault matrix A).

Rows are those of `docs/fault-matrix.md`.
"""

from __future__ import annotations

import errno
from pathlib import Path
from threading import Event, Thread

import pytest
from tests.storage.wal.rig import FILE_BYTES, FLAT, WAL, Log, Model, new_log

from topics.clock import SystemClock
from topics.errors import CommitFailed
from topics.formats.wal.frame import encode_appends
from topics.model.submission import Submission
from topics.storage.data_dir import DataDir
from topics.storage.osfs import OsFs, RetryingFs
from topics.storage.wal.file_scan import scan_group
from topics.storage.wal.group import RESERVE_SHARE
from topics.storage.wal.group_scan import discover
from topics.storage.wal.log_repair import open_group
from topics.storage.wal.rotation import Layout
from topics.storage.wal.wal_files import WalFiles
from topics.testing import FOREVER
from topics.testing.powercut import flipped_at, only, sector_zeroed_at, torn_at


def failing(log: Log, *counts: int, durable: bool = True) -> CommitFailed:
    """Send a batch that fails."""
    with pytest.raises(CommitFailed) as caught:
        log.send(*counts, durable=durable)
    return caught.value


def bytes_of_log(log: Log) -> bytes:
    return log.disk.contents(log.path(1))


def test_a_batch_that_the_kernel_takes_in_halves_is_the_same_batch() -> None:  # row 1
    plain, halved = new_log(), new_log()
    halved.faults.short("pwrite", WAL, times=3)
    for log in (plain, halved):
        log.send(1, 3, 2)
    assert bytes_of_log(halved) == bytes_of_log(plain)
    assert len(halved.crash().twice().found()) == 3


def test_a_write_without_progress_fails_the_batch_and_the_group() -> None:  # row 2
    log = new_log()
    log.send(1)
    tail = log.group.position
    log.faults.short("pwrite", WAL, keep=0, times=FOREVER)
    assert failing(log, 2).cause == "write"
    assert log.group.read_only == "write"
    assert log.group.position == tail
    log.faults.clear()
    assert len(log.crash().twice().found()) == 1


def test_after_one_eio_nothing_of_the_batch_is_there_and_all_later_writes_are_refused() -> None:  # row 3
    log = new_log()
    log.send(1)
    log.faults.fail("pwrite", WAL)
    error = failing(log, 2, 2)
    assert (error.outcome, error.cause) == ("not_committed", "write")
    later = failing(log, 1)
    assert (later.outcome, later.cause) == ("not_committed", "write")
    assert log.group.probe_space() is False
    assert len(log.kill().twice().found()) == 1


def test_a_half_written_batch_is_wiped_before_it_is_called_absent() -> None:
    log = new_log()
    log.send(1)
    log.faults.short("pwrite", WAL, keep=100)
    log.faults.fail("pwrite", WAL, at=2)
    assert failing(log, 2).outcome == "not_committed"
    tail = log.group.position.off
    assert not bytes_of_log(log)[tail:].strip(b"\0")
    assert len(log.crash("lose_all").twice().found()) == 1


def test_a_failed_group_leaves_the_others_alone() -> None:  # row 4
    log = new_log(shards=4)
    for key in log.groups:
        log.send(1, key=key)
    log.faults.fail("pwrite", "*/shard-00/wal-*", times=FOREVER)
    with pytest.raises(CommitFailed):
        log.send(1, key="shard-00")
    for key in ("shard-01", "shard-02", "shard-03"):
        log.send(2, key=key)
        assert log.groups[key].read_only is None
    log.faults.clear()
    log = log.crash().twice()
    assert {key: len(log.found(key)) for key in log.groups} == {
        "shard-00": 1,
        "shard-01": 2,
        "shard-02": 2,
        "shard-03": 2,
    }


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_refuses_until_there_is_space_and_then_goes_on_with_the_same_seqs(code: int) -> None:  # row 5
    log = new_log()
    log.send(1)
    full = log.faults.fail("pwrite", WAL, code=code, times=FOREVER)
    error = failing(log, 2)
    assert (error.outcome, error.cause) == ("not_committed", "no_space")
    assert log.group.probe_space() is False  # still full
    full.lift()
    assert log.group.probe_space() is True
    assert [sent.first_seq for sent in log.send(1)] == [2]
    assert len(log.crash().twice().found()) == 2


def test_the_tail_of_a_wiped_batch_never_comes_back_behind_a_shorter_one() -> None:  # row 6
    for pattern in ("keep_all", "lose_all", "reorder", "random"):
        log = new_log()
        log.faults.short("pwrite", WAL, keep=150, at=1)
        log.faults.fail("pwrite", WAL, code=errno.ENOSPC, at=2)
        assert failing(log, 1, 1).outcome == "not_committed"  # A and B, of one length
        assert log.group.probe_space() is True
        log.send(1)  # C, as long as A
        again = log.crash(pattern).twice()
        assert [sent.count for sent in again.model.sent[FLAT]] == [1]


@pytest.mark.parametrize("wipe_code", [errno.EIO, errno.ENOSPC])
def test_when_the_wipe_fails_nothing_is_appended_before_a_restart(wipe_code: int) -> None:  # row 7
    log = new_log()
    log.send(1)
    log.faults.short("pwrite", WAL, keep=70)  # half a frame lands
    log.faults.fail("pwrite", WAL, code=errno.ENOSPC, at=2)
    log.faults.fail("pwrite", WAL, code=wipe_code, at=3)  # the zeros
    error = failing(log, 2)
    assert (error.outcome, error.cause) == ("unknown", "write")
    assert log.group.probe_space() is False
    assert failing(log, 1).outcome == "not_committed"
    log = log.crash("keep_all").twice()
    assert len(log.found()) == 1
    log.send(1)


def test_a_wipe_whose_sync_fails_counts_as_a_failed_sync() -> None:
    log = new_log()
    log.send(1)
    log.faults.fail("pwrite", WAL, code=errno.ENOSPC)
    log.faults.fail("datasync", WAL)
    error = failing(log, 2)
    assert (error.outcome, error.cause) == ("unknown", "sync")
    assert log.lock._handle.read_text().endswith("boot=-\n")


def test_a_failed_sync_is_final_however_well_the_next_one_would_go() -> None:  # row 8
    log = new_log()
    log.send(1)
    log.faults.fail("datasync", WAL)
    error = failing(log, 2)
    assert (error.outcome, error.cause) == ("unknown", "sync")
    with pytest.raises(CommitFailed):
        log.sync()
    assert failing(log, 1).cause == "sync"
    assert log.group.synced_lsn < log.group.written_lsn
    assert log.group.probe_space() is False
    log.crash("keep_all").twice()


def test_a_failed_sync_marks_the_boot_line_before_anything_else() -> None:
    log = new_log()
    log.faults.fail("datasync", WAL)
    seen = len(log.faults.trace)
    failing(log, 1)
    after = [call.kind for call in log.faults.trace[seen:] if call.path.endswith(".lock")]
    assert after == ["truncate", "pwrite", "fsync"]
    assert log.next().disk.contents("data/.topics.lock") == b"pid=7\nboot=-\n"


def test_when_the_boot_line_cannot_be_marked_every_group_is_read_only() -> None:
    log = new_log(shards=2)
    log.faults.fail("datasync", WAL)
    log.faults.fail("fsync", "*.lock")
    with pytest.raises(CommitFailed):
        log.send(1, key="shard-00")
    assert {group.read_only for group in log.groups.values()} == {"sync"}


def test_records_acked_before_a_failed_sync_stay_readable_and_are_counted() -> None:  # rows 9, 10
    log = new_log()
    log.send(2, durable=False)
    log.sync()
    written = log.send(3, durable=False)[0]
    log.faults.fail("datasync", WAL)
    with pytest.raises(CommitFailed):
        log.sync()
    assert log.group.at_risk_frames == 3
    assert log.files.pread(written.sub.file, written.sub.offset, written.sub.size) == written.data
    log.crash("lose_all").twice()


@pytest.mark.parametrize("pattern", ["lose_all", "keep_all", "keep_prefix_torn", "reorder", "zero_sector", "flip"])
def test_after_a_failed_sync_each_submission_is_whole_or_absent(pattern: str) -> None:  # rows 11, 12
    for seed in range(6):
        log = new_log()
        log.send(2)
        log.faults.fail("datasync", WAL)
        failing(log, 1, 3, 2)
        log.crash(pattern, seed).twice()


def test_a_power_cut_between_write_and_sync_takes_only_what_was_not_acked() -> None:  # row 13
    log = new_log()
    log.send(2)
    log.write(*log.make(3))
    assert len(log.crash("lose_all").twice().found()) == 1


def test_a_synced_batch_is_there_even_if_nobody_was_told() -> None:  # row 14
    log = new_log()
    log.write(*log.make(1, 3))
    log.group.sync()
    assert len(log.crash("lose_all").twice().found()) == 2


def torn_batch() -> tuple[Log, int]:
    """Submissions of 1, 3 and 2 records in one unsynced batch, behind a synced one."""
    log = new_log()
    log.send(1)
    made = log.make(1, 3, 2, durable=False)
    log.write(*made)
    return log, sum(sent.sub.size for sent in made)


def test_a_batch_torn_at_any_byte_keeps_whole_submissions_and_is_cut_behind_the_last() -> None:  # row 15
    log, size = torn_batch()
    ends = [sent.sub.offset + sent.sub.size for sent in log.model.sent[FLAT]]
    first = ends[0]
    for n in range(size + 1):
        disk = log.disk.clone()
        disk.power_cut(pattern=torn_at(n, "data/wal/wal-*"))
        after = Log(disk.reboot(), Model({FLAT: [*log.model.sent[FLAT]]})).start()
        whole = [end for end in ends if end <= first + n]
        assert len(after.found()) == len(whole), n
        assert after.group.position.off == whole[-1]
        assert after.scans[FLAT].end.kind == ("clean" if first + n == whole[-1] else "torn")
        assert not after.quarantine()


@pytest.mark.parametrize("damage", ["sector", "flip"])
def test_a_batch_with_a_bad_sector_or_byte_ends_there_and_what_lies_behind_is_set_aside(damage: str) -> None:  # row 16
    log, size = torn_batch()
    sents = log.model.sent[FLAT]
    ends = [sent.sub.offset + sent.sub.size for sent in sents]
    for n in range(0, size, 1 if damage == "flip" else 64):
        disk = log.disk.clone()
        before = disk.contents(log.path(1))
        fate = flipped_at(n, "data/wal/wal-*") if damage == "flip" else sector_zeroed_at(n, "data/wal/wal-*")
        disk.power_cut(pattern=fate)
        disk = disk.reboot()
        bad = next((i for i, (a, b) in enumerate(zip(before, disk.contents(log.path(1)), strict=True)) if a != b), None)
        assert bad is not None
        after = Log(disk, Model({FLAT: [*sents]})).start()
        whole = [end for end in ends if end <= bad]
        assert after.group.position.off == whole[-1], n
        frames_behind = after.scans[FLAT].end.frames
        assert (after.scans[FLAT].end.kind == "hole") == bool(after.quarantine())
        if frames_behind:
            # Every valid frame behind the bad place was set aside, and its seq is out of use.
            assert after.next_seq[FLAT] > max(after.scans[FLAT].end.highest.values())


def test_when_only_the_second_of_two_unsynced_batches_survives_the_log_ends_in_front_of_it() -> None:  # row 17
    log = new_log()
    log.send(1)
    log.write(*log.make(2, durable=False))
    second = log.make(3, durable=False)
    log.write(*second)
    log = log.crash(only(1, path="data/wal/wal-*")).restart().checked()
    assert len(log.found()) == 1
    assert log.scans[FLAT].end.kind == "hole"
    assert log.scans[FLAT].end.highest == {1: 6}
    assert log.next_seq[FLAT] == 7
    names = sorted(log.quarantine())
    assert len(names) == 2
    assert second[0].data in log.disk.contents(f"data/wal/quarantine/flat/{names[0]}")
    before = log.dump()
    again = log.kill().restart().checked()
    assert again.dump() == before
    assert again.next_seq[FLAT] == 7  # the note still says so


def test_a_synced_frame_damaged_by_its_neighbour_is_served_to_nobody() -> None:  # row 18
    log = new_log()
    log.send(1)
    bad = log.send(1)[0]
    log.send(1)
    at = bad.sub.offset + 50
    log.disk.tamper(log.path(1), lambda data: data[:at] + b"\xff" + data[at + 1 :])
    log.model.sent[FLAT][1:] = []
    after = log.crash().restart()
    assert after.scans[FLAT].end.kind == "hole"
    assert len(after.found()) == 1
    assert after.next_seq[FLAT] == 4


@pytest.mark.parametrize(
    ("code", "times", "fails"), [(errno.EINTR, 50, 0), (errno.EAGAIN, 3, 0), (errno.EAGAIN, FOREVER, 1)]
)
@pytest.mark.parametrize("kind", ["pwrite", "datasync"])
def test_passing_errors_have_no_effect_and_lasting_ones_fail(kind: str, code: int, times: int, fails: int) -> None:
    log = new_log()  # row 19
    log.faults.fail(kind, WAL, code=code, times=times)  # type: ignore[arg-type]
    if fails:
        failing(log, 2)
        log.faults.clear()
    else:
        log.send(2)
    assert len(log.kill().twice().found()) == (0 if fails and kind == "pwrite" else 1)


def test_a_stale_descriptor_is_a_failed_write_and_a_restart_opens_the_path_again() -> None:  # row 20
    log = new_log()
    log.send(1)
    log.faults.fail("pwrite", WAL, code=errno.ESTALE, times=FOREVER)
    assert failing(log, 1).cause == "write"
    log = log.kill().twice()
    log.send(1)


def test_a_group_whose_thread_died_refuses_everything() -> None:  # row 22
    log = new_log()
    log.send(1)
    log.group.latch("writer_dead")
    assert failing(log, 1).cause == "writer_dead"
    assert log.group.latch("no_space") == "writer_dead"


def test_a_disk_that_lies_about_syncs_leaves_a_prefix_and_a_start_that_works() -> None:  # row 25
    for seed in range(20):
        log = new_log()
        log.faults.lie("datasync", WAL, times=FOREVER)
        for count in (1, 3, 2, 1):
            log.write(*log.make(count))
            log.group.sync()  # believed by nobody: the model takes nothing for acked
        log.crash("random", seed).twice()


def test_a_submission_larger_than_a_file_gets_a_file_of_its_own_size() -> None:  # row 26
    log = new_log()
    log.send(1)
    big = log.make(3, size=3000, durable=False)
    log.write(*big)
    assert log.numbers() == [1, 3]
    reserve = FILE_BYTES // RESERVE_SHARE
    assert big[0].sub.offset + big[0].sub.size + reserve == log.disk.stat_len(log.path(3))
    for n in range(0, big[0].sub.size, 41):
        disk = log.disk.clone()
        disk.power_cut(pattern=torn_at(n, "data/wal/wal-*3.log"))
        after = log.next(disk.reboot()).start()
        assert len(after.found()) == 1
        assert after.group.position.file == 3
    log.group.sync()
    assert len(log.crash().twice().found()) == 2


def test_a_write_tells_each_submission_where_it_lies() -> None:
    log = new_log()
    made = log.make(1, 3, 2)
    log.write(*made)
    for sent in made:
        assert log.files.pread(sent.sub.file, sent.sub.offset, sent.sub.size) == sent.data
    assert [sent.sub.end_lsn for sent in made] == [sum(sent.sub.size for sent in made[: i + 1]) for i in range(3)]
    assert log.group.written_lsn == made[-1].sub.end_lsn
    assert log.group.sync() == log.group.written_lsn == log.group.synced_lsn


def test_a_sync_covers_what_was_written_before_it_began_and_no_more() -> None:
    log = new_log()
    log.write(*log.make(1))
    covered = log.group.written_lsn
    log.faults.block("datasync", WAL, until=lambda: log.write(*log.make(2)))
    assert log.group.sync() == covered
    assert log.group.synced_lsn == covered < log.group.written_lsn
    assert log.group.sync() == log.group.written_lsn


def test_a_sync_with_nothing_new_asks_the_disk_nothing() -> None:
    log = new_log()
    log.send(1)
    seen = len(log.faults.trace)
    log.group.sync()
    assert len(log.faults.trace) == seen


def test_counters_say_what_was_done() -> None:
    log = new_log()
    opened = log.group.stats.bytes_written
    log.send(1, 3)
    log.send(2, durable=False)
    stats = log.group.stats
    assert (stats.frames, stats.client_frames, stats.batches, stats.syncs) == (7, 6, 2, 1)
    assert stats.bytes_written - opened == log.group.written_lsn
    assert sum(stats.sync_buckets) == 1
    stats.count_sync(0.00005)
    stats.count_sync(0.2)
    assert (stats.sync_buckets[0], stats.sync_buckets[-1]) == (2, 1)


def test_an_empty_start_makes_one_file_with_its_open_frame() -> None:
    log = new_log()
    assert log.disk.contents("data/wal/CURRENT") == b"wal-0000000000000001.log\n"
    assert log.disk.stat_len(log.path(1)) == log.file_bytes
    assert log.group.position.file == 1


def test_a_thread_may_sync_while_another_writes(tmp_path: Path) -> None:
    fs, data, files = RetryingFs(OsFs()), DataDir(str(tmp_path / "data")), WalFiles()
    data.make_root(fs)
    data.make_missing(fs)
    group = open_group(
        fs, data, "", scan=None, repaired=None, layout=Layout(1, 1), files=files, file_bytes=1 << 20,
        clock=SystemClock(), sync_failed=lambda: None,
    )  # fmt: skip
    stop, claims = Event(), []

    def sync() -> None:
        while not stop.is_set():
            before = group.written_lsn
            claims.append((before, group.sync(), group.written_lsn))

    thread = Thread(target=sync)
    thread.start()
    try:
        subs = []
        for seq in range(1, 301):
            encoded = encode_appends(topic_id=1, first_seq=seq, ts=5, datas=[b'{"d":%d}' % seq], durable=True)
            subs.append(Submission([encoded.buffer], len(encoded.buffer), 1, client_frames=1, durable=True))
            group.write(subs[-1:])
    finally:
        stop.set()
        thread.join()
    assert all(before <= synced <= after for before, synced, after in claims)
    assert group.sync() == subs[-1].end_lsn == group.synced_lsn
    assert all(files.pread(sub.file, sub.offset, sub.size) == sub.frames[0] for sub in subs)
    files.close()
    listing, table = discover(fs, data)[0], WalFiles()
    assert sum(len(found.columns) for found in scan_group(fs, listing, table).files) == 301
    table.close()
