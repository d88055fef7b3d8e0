"""Every order rule shown red and green."""

import errno
from collections.abc import Callable

import numpy as np
import pytest

from topics.formats.segments.idx import IDX_DTYPE
from topics.formats.wal.bodies import TierMark, TierMove, encode_body
from topics.formats.wal.frame import FrameType, encode_frame
from topics.model.ops import Evict
from topics.storage.fs import install, make_dirs, write_all
from topics.testing import FaultFs, OrderFs, OrderMonitor, OrderViolation, SimFs

HOT, COLD = "data/topics", "cold/topics"
SEG = "0000000A/seg-0000000000000001"
WAL = "data/wal/wal-0000000000000001.log"


class Bench:
    """A disk with a data directory, watched; `fs` also takes faults."""

    def __init__(self) -> None:
        self.disk = SimFs()
        for path in ("data/wal", "data/meta", f"{HOT}/0000000A", f"{COLD}/0000000A"):
            make_dirs(self.disk, path)
        self.monitor = OrderMonitor(hot=HOT, cold=COLD)
        self.start()

    def start(self) -> None:
        self.fs = FaultFs(OrderFs(self.disk, self.monitor))

    def restart(self, *, power_cut: bool) -> None:
        self.disk.power_cut(pattern="keep_all") if power_cut else self.disk.kill()
        self.disk = self.disk.reboot()
        self.monitor.restarted(power_cut=power_cut)
        self.start()

    def file(self, path: str, data: bytes = b"x", *, sync: bool = True) -> None:
        file = self.fs.open(path, "create")
        write_all(file, 0, data)
        if sync:
            file.fsync()
            self.fs.sync_dir(path.rpartition("/")[0])
        file.close()

    def segment(self, root: str, *, count: int = 3) -> None:
        self.file(f"{root}/{SEG}.data", b"d" * 30)
        self.file(f"{root}/{SEG}.idx", entries(*((10 * i, 10) for i in range(count))))

    def log(self, *bodies: TierMark | Evict, sync: bool = True) -> None:
        file = self.fs.open(WAL, "ensure")
        for body in bodies:
            write_all(file, self.disk.stat_len(WAL), frame(body))
        if sync:
            file.datasync()


def entries(*places: tuple[int, int], flags: int = 0) -> bytes:
    idx = np.zeros(len(places), IDX_DTYPE)
    idx["offset"], idx["len"] = [p[0] for p in places], [p[1] for p in places]
    idx["ts"], idx["flags"] = 1, flags
    return idx.tobytes()


def frame(body: TierMark | Evict) -> bytes:
    kind = FrameType.CHECKPOINT_MARK if isinstance(body, TierMark) else FrameType.EVICT_WATERMARK
    return encode_frame(kind, topic_id=10 if kind == 7 else 0, ts=1, data=encode_body(body), durable=True)


def moved(tier: str) -> TierMark:
    return TierMark(moves=[TierMove(id=10, first=1, count=3, tier=tier)])  # type: ignore[arg-type]


def evicted(earliest_seq: int) -> Evict:
    return Evict(
        evict_floor=earliest_seq, cap_lost=0, ttl_lost=0, trim_lost=0, restart_lost=0, earliest_seq=earliest_seq
    )  # fmt: skip


@pytest.fixture
def bench() -> Bench:
    return Bench()


def red(call: Callable[[], object], match: str) -> None:
    with pytest.raises(OrderViolation, match=match):
        call()


# --- rename before fsync ----------------------------------------------------------------------------------------------


def test_install_is_in_order(bench: Bench) -> None:
    install(bench.fs, "data/wal/CURRENT", b"wal-1.log\n")
    bench.monitor.check()


def test_a_rename_of_an_unsynced_temp_is_a_violation(bench: Bench) -> None:
    bench.file("data/wal/CURRENT.tmp", sync=False)
    red(lambda: bench.fs.rename("data/wal/CURRENT.tmp", "data/wal/CURRENT"), "before the fsync of its bytes")
    assert not bench.disk.exists("data/wal/CURRENT"), "the call that breaks a rule does not happen"
    with pytest.raises(OrderViolation):
        bench.monitor.check()


def test_a_rename_of_an_empty_temp_needs_an_fsync_too(bench: Bench) -> None:
    bench.fs.open("data/wal/CURRENT.tmp", "create")
    red(lambda: bench.fs.rename("data/wal/CURRENT.tmp", "data/wal/CURRENT"), "never fsynced")


def test_a_temp_written_again_needs_another_sync(bench: Bench) -> None:
    file = bench.fs.open("data/x.tmp", "create")
    write_all(file, 0, b"abc")
    file.fsync()
    write_all(file, 1, b"\xd5")
    red(lambda: bench.fs.rename("data/x.tmp", "data/x"), "before the fsync")
    file.datasync()
    bench.fs.rename("data/x.tmp", "data/x")


def test_a_temp_whose_sync_failed_is_not_saved_by_the_next_sync(bench: Bench) -> None:
    bench.fs.fail("fsync")
    file = bench.fs.open("data/x.tmp", "create")
    write_all(file, 0, b"abc")
    with pytest.raises(OSError):
        file.fsync()
    file.fsync()
    red(lambda: bench.fs.rename("data/x.tmp", "data/x"), "before the fsync")
    write_all(file, 0, b"abc")
    file.fsync()
    bench.fs.rename("data/x.tmp", "data/x")


# --- .idx before .data ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".tmp"])
def test_idx_bytes_before_the_sync_of_their_data_are_a_violation(bench: Bench, suffix: str) -> None:
    data = bench.fs.open(f"{HOT}/{SEG}.data{suffix}", "create")
    idx = bench.fs.open(f"{HOT}/{SEG}.idx{suffix}", "create")
    write_all(data, 0, b"d" * 20)
    data.fsync()
    write_all(idx, 0, entries((0, 10), (10, 10)))
    write_all(data, 20, b"d" * 10)
    red(lambda: write_all(idx, 40, entries((20, 10))), "which are not synced")
    data.datasync()
    write_all(idx, 40, entries((20, 10)))


def test_an_empty_slot_names_no_bytes(bench: Bench) -> None:
    bench.file(f"{HOT}/{SEG}.data", b"d" * 20, sync=False)
    write_all(bench.fs.open(f"{HOT}/{SEG}.idx", "create"), 0, entries((0, 0), flags=4))


def test_a_rebuilt_idx_names_the_data_that_has_no_temp(bench: Bench) -> None:
    bench.file(f"{HOT}/{SEG}.data", b"d" * 10, sync=False)
    red(lambda: install(bench.fs, f"{HOT}/{SEG}.idx", entries((0, 10))), "which are not synced")


def test_bit_2_waits_for_the_sync_of_its_flag_byte(bench: Bench) -> None:
    bench.segment(HOT)
    data, idx = bench.fs.open(f"{HOT}/{SEG}.data", "rw"), bench.fs.open(f"{HOT}/{SEG}.idx", "rw")
    write_all(data, 19, b"\xd5")
    write_all(idx, 16, b"\x04")  # of record 1, whose bytes are all synced
    write_all(idx, 20, entries((10, 10)))  # still live: its flag byte may be in flight
    red(lambda: write_all(idx, 36, b"\x04"), "which are not synced")
    data.datasync()
    write_all(idx, 36, b"\x04")


# --- log appends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("power_cut", [False, True])
def test_an_append_behind_torn_bytes_needs_a_synced_truncation(bench: Bench, power_cut: bool) -> None:
    file = bench.fs.open(WAL, "create")
    file.allocate(4096)
    write_all(file, 0, b"good....torn")
    bench.restart(power_cut=power_cut)
    file = bench.fs.open(WAL, "rw")
    red(lambda: write_all(file, 8, b"next"), "old bytes behind it were cut off")
    file.truncate(8)
    red(lambda: write_all(file, 8, b"next"), "before its truncation was synced")
    file.fsync()
    file.allocate(4096)
    write_all(file, 8, b"next")


def test_an_append_behind_a_clean_end_needs_no_truncation(bench: Bench) -> None:
    file = bench.fs.open(WAL, "create")
    file.allocate(4096)
    write_all(file, 0, b"good")
    file.datasync()
    bench.restart(power_cut=True)
    write_all(bench.fs.open(WAL, "rw"), 4, b"next")


def test_a_rotated_file_is_fresh_under_its_new_name(bench: Bench) -> None:
    file = bench.fs.open("data/wal/prealloc.tmp", "create")
    file.allocate(4096)
    write_all(file, 0, b"open")
    file.fsync()
    bench.fs.rename("data/wal/prealloc.tmp", WAL)
    bench.fs.sync_dir("data/wal")
    fault = bench.fs.fail("datasync", "*/wal-*.log", code=errno.EINTR)
    write_all(file, 4, b"next")
    with pytest.raises(InterruptedError):
        file.datasync()
    assert fault.hits == 1, "an open file is known by its present name"
    red(lambda: bench.monitor.acked(WAL, 8), "durable up to 4")


def test_an_append_over_a_failed_write_needs_a_synced_wipe(bench: Bench) -> None:
    file = bench.fs.open(WAL, "create")
    bench.fs.sync_dir("data/wal")
    bench.fs.short("pwrite", keep=3)
    bench.fs.fail("pwrite", at=2, code=errno.ENOSPC)
    with pytest.raises(OSError):
        write_all(file, 0, b"abcdef")
    red(lambda: write_all(file, 0, b"next"), "wiped and synced")
    file.datasync()
    red(lambda: write_all(file, 0, b"next"), "wiped and synced")
    write_all(file, 0, bytes(6))
    red(lambda: write_all(file, 0, b"next"), "wiped and synced")
    file.datasync()
    write_all(file, 0, b"next")


# --- acks -------------------------------------------------------------------------------------------------------------


def test_an_ack_before_the_sync_is_a_violation(bench: Bench) -> None:
    file = bench.fs.open(WAL, "create")
    bench.fs.sync_dir("data/wal")
    write_all(file, 0, b"abc")
    red(lambda: bench.monitor.acked(WAL, 3), "durable up to 0")
    file.datasync()
    bench.monitor.acked(WAL, 3)
    write_all(file, 3, b"def")
    bench.monitor.acked(WAL, 3)
    red(lambda: bench.monitor.acked(WAL, 4), "durable up to 3")


def test_an_ack_before_the_name_is_durable_is_a_violation(bench: Bench) -> None:
    bench.fs.mkdir("data/wal/shard-00")
    path = "data/wal/shard-00/wal-0000000000000001.log"
    file = bench.fs.open(path, "create")
    write_all(file, 0, b"abc")
    file.datasync()
    red(lambda: bench.monitor.acked(path, 3), "before dir fsync of data/wal/shard-00")
    bench.fs.sync_dir("data/wal/shard-00")
    red(lambda: bench.monitor.acked(path, 3), "before dir fsync of data/wal$")
    bench.fs.sync_dir("data/wal")
    bench.monitor.acked(path, 3)


def test_a_later_sync_does_not_justify_the_ack_of_a_failed_one(bench: Bench) -> None:
    bench.fs.fail("datasync")
    file = bench.fs.open(WAL, "create")
    bench.fs.sync_dir("data/wal")
    write_all(file, 0, b"abc")
    with pytest.raises(OSError):
        file.datasync()
    file.datasync()
    red(lambda: bench.monitor.acked(WAL, 3), "durable up to 0")


def test_a_lying_sync_does_not_justify_an_ack(bench: Bench) -> None:
    bench.fs.lie("datasync")
    file = bench.fs.open(WAL, "create")
    bench.fs.sync_dir("data/wal")
    write_all(file, 0, b"abc")
    file.datasync()
    red(lambda: bench.monitor.acked(WAL, 3), "durable up to 0")


def test_a_sync_covers_only_what_was_written_before_it_began(bench: Bench) -> None:
    order = OrderFs(FaultFs(bench.disk), bench.monitor)
    inner = order._inner
    assert isinstance(inner, FaultFs)
    file = order.open(WAL, "create")
    order.sync_dir("data/wal")
    write_all(file, 0, b"abc")
    inner.block("datasync", until=lambda: write_all(file, 3, b"def"))
    file.datasync()
    bench.monitor.acked(WAL, 3)
    red(lambda: bench.monitor.acked(WAL, 6), "durable up to 3")


# --- deletes ----------------------------------------------------------------------------------------------------------


def test_a_hot_segment_goes_only_after_its_synced_tier_mark(bench: Bench) -> None:
    bench.segment(HOT)
    bench.segment(COLD)
    red(lambda: bench.fs.unlink(f"{HOT}/{SEG}.data"), "before its tier mark is synced")
    bench.log(moved("cold"), sync=False)
    red(lambda: bench.fs.unlink(f"{HOT}/{SEG}.data"), "before its tier mark is synced")
    bench.log(sync=True)
    bench.fs.unlink(f"{HOT}/{SEG}.data")
    bench.fs.unlink(f"{HOT}/{SEG}.idx")


def test_a_tier_mark_can_also_be_told(bench: Bench) -> None:
    bench.segment(HOT)
    bench.segment(COLD)
    bench.monitor.tier_marked(topic_id=10, first_seq=1, tier="cold")
    bench.fs.unlink(f"{HOT}/{SEG}.data")


def test_a_hot_segment_stays_until_its_cold_copy_is_durable(bench: Bench) -> None:
    bench.segment(HOT)
    bench.file(f"{COLD}/{SEG}.data", sync=False)
    bench.log(moved("cold"))
    red(lambda: bench.fs.unlink(f"{HOT}/{SEG}.data"), "seg-0000000000000001.data is durable")
    bench.file(f"{COLD}/{SEG}.data")
    red(lambda: bench.fs.unlink(f"{HOT}/{SEG}.data"), "seg-0000000000000001.idx is durable")
    bench.file(f"{COLD}/{SEG}.idx")
    bench.fs.unlink(f"{HOT}/{SEG}.data")


def test_a_segment_below_the_synced_floor_needs_no_mark(bench: Bench) -> None:
    bench.segment(HOT)
    bench.segment(COLD)
    bench.log(evicted(3))
    red(lambda: bench.fs.unlink(f"{HOT}/{SEG}.data"), "before its tier mark is synced")
    bench.log(evicted(4))
    bench.fs.unlink(f"{HOT}/{SEG}.data")


def test_a_segment_that_was_never_copied_needs_no_mark(bench: Bench) -> None:
    bench.segment(HOT)
    bench.fs.unlink(f"{HOT}/{SEG}.data")


def test_marks_of_an_unfinished_submission_do_not_count(bench: Bench) -> None:
    bench.segment(HOT)
    bench.segment(COLD)
    file = bench.fs.open(WAL, "create")
    half = encode_frame(FrameType.CHECKPOINT_MARK, ts=1, data=encode_body(moved("cold")), durable=True, more=True)
    write_all(file, 0, half)
    file.datasync()
    red(lambda: bench.fs.unlink(f"{HOT}/{SEG}.data"), "before its tier mark is synced")
    write_all(file, len(half), frame(evicted(1)))
    file.datasync()
    bench.fs.unlink(f"{HOT}/{SEG}.data")


def test_a_set_aside_file_goes_only_when_its_copy_is_durable(bench: Bench) -> None:
    bench.file(WAL)
    make_dirs(bench.fs, "data/wal/quarantine")
    copy = "data/wal/quarantine/wal-1"
    bench.monitor.copied(WAL, copy)
    red(lambda: bench.fs.unlink(WAL), "before its copy")
    bench.file(copy, sync=False)
    red(lambda: bench.fs.unlink(WAL), "before its copy")
    bench.file(copy)
    bench.fs.unlink(WAL)


def test_an_old_snapshot_goes_only_when_the_new_one_is_durable(bench: Bench) -> None:
    for n in (1, 2):
        install(bench.fs, f"data/meta/snapshot.000{n}.bin", b"s")
    bench.fs.fail("sync_dir", "data/meta")
    with pytest.raises(OSError):
        install(bench.fs, "data/meta/snapshot.0003.bin", b"s")
    red(lambda: bench.fs.unlink("data/meta/snapshot.0001.bin"), "before data/meta/snapshot.0003.bin is durable")
    bench.fs.sync_dir("data/meta")
    bench.fs.unlink("data/meta/snapshot.0001.bin")


# --- the monitor itself -----------------------------------------------------------------------------------------------


def test_what_was_unsynced_at_a_kill_still_is_afterwards(bench: Bench) -> None:
    bench.file(WAL, b"abc", sync=False)
    bench.restart(power_cut=False)
    red(lambda: bench.monitor.acked(WAL, 3), "durable up to 0")
    bench.fs.open(WAL, "rw").fsync()
    bench.fs.sync_dir("data/wal")
    bench.monitor.acked(WAL, 3)


def test_what_a_power_cut_left_is_durable(bench: Bench) -> None:
    bench.file(WAL, b"abc", sync=False)
    bench.restart(power_cut=True)
    bench.monitor.acked(WAL, 3)


def test_a_renamed_directory_keeps_what_is_known_of_its_files(bench: Bench) -> None:
    bench.file(f"{HOT}/0000000A/x", sync=False)
    bench.fs.rename(f"{HOT}/0000000A", f"{HOT}/0000000B")
    bench.fs.sync_dir(HOT)
    red(lambda: bench.monitor.acked(f"{HOT}/0000000B/x", 1), "durable up to 0")


def test_a_swallowed_violation_is_still_found(bench: Bench) -> None:
    bench.file("data/x.tmp", sync=False)
    try:
        bench.fs.rename("data/x.tmp", "data/x")
    except AssertionError:
        pass
    assert len(bench.monitor.violations) == 1
    with pytest.raises(OrderViolation):
        bench.monitor.check()
