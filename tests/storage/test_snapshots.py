"""Snapshots as files: install, fall back, prune (fault matrix G).

Rows are those of `docs/fault-matrix.md`.
"""

from __future__ import annotations

import errno
from random import Random

import pytest

from topics.errors import UnsupportedVersion
from topics.formats.snapshot import GroupPosition, Snapshot, encode_snapshot, wrap_body
from topics.storage.fs import Fs
from topics.storage.osfs import RetryingFs
from topics.storage.snapshots import SnapshotStore, layout_of, positions_of
from topics.storage.wal.wal_files import LogPosition
from topics.testing import FOREVER, CrashPoints, FaultFs, SimCrash, SimFs
from topics.testing.order_fs import OrderFs

META = "data/meta"


def snapshot(number: int, *, at: int = 0) -> Snapshot:
    return Snapshot(
        id=number,
        instance="0" * 32,
        clock_ms=1000 + number,
        ts=1000,
        clean=False,
        gen=1,
        shards=1,
        next_topic_id=number,
        next_ckpt=1,
        groups=(GroupPosition(key="", file=at or number * 10, off=84),),
        topics=(),
        routers=(),
    )


def name(number: int) -> str:
    return f"{META}/snapshot.{number:04d}.bin"


def made(disk: SimFs, *numbers: int) -> SimFs:
    disk.plant(f"{META}/foreign.txt", b"kept")
    for number in numbers:
        disk.plant(name(number), encode_snapshot(snapshot(number)))
    return disk


def stored(fs: Fs) -> tuple[SnapshotStore, Snapshot | None]:
    store = SnapshotStore(fs, META)
    return store, store.load().snapshot


def numbers(disk: SimFs) -> list[str]:
    return [found for found in disk.listdir(META) if found.startswith("snapshot")]


def test_the_newest_snapshot_is_loaded_and_nothing_is_changed() -> None:
    disk = made(SimFs(), 3, 4)
    before = disk.dump()
    store, found = stored(disk)
    assert found == snapshot(4)
    assert store.next_number == 5
    assert store.kept() == [{"": LogPosition(40, 84)}, {"": LogPosition(30, 84)}]
    assert disk.dump() == before


def test_numbers_are_compared_as_numbers() -> None:
    disk = made(SimFs(), 9999, 10000)
    assert stored(disk)[1] == snapshot(10000)


def test_no_directory_and_an_empty_one_have_no_snapshot() -> None:
    assert stored(SimFs())[1] is None
    assert stored(made(SimFs()))[1] is None


def test_installing_keeps_the_newest_two() -> None:
    disk = made(SimFs(), 3, 4)
    store, _ = stored(disk)
    store.install(snapshot(5))
    assert numbers(disk) == ["snapshot.0004.bin", "snapshot.0005.bin"]
    assert store.kept() == [{"": LogPosition(50, 84)}, {"": LogPosition(40, 84)}]
    assert disk.contents(f"{META}/foreign.txt") == b"kept"
    with pytest.raises(ValueError, match="not newer"):
        store.install(snapshot(5))


def break_header(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


GOOD = encode_snapshot(snapshot(4))
WAYS = {
    "empty": b"",
    "short header": GOOD[:23],
    "bad magic": break_header(GOOD, 0, b"SNP2"),
    "version 2": break_header(GOOD, 4, b"\x02"),
    "version 99": break_header(GOOD, 4, b"\x63"),
    "reserved set": break_header(GOOD, 12, b"\x01"),
    "body_len too small": break_header(GOOD, 8, bytes([GOOD[8] - 1])),
    "body_len too large": break_header(GOOD, 8, bytes([GOOD[8] + 1])),
    "cut": GOOD[:-1],
    "trailing byte": GOOD + b"\0",
    "field missing": wrap_body(b"\x81\xa2id\x04"),
    "no map": wrap_body(b"\x04"),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_invalid_newest_snapshot_is_passed_over_with_its_reason(way: str) -> None:  # row 89
    disk = made(SimFs(), 3, 4)
    disk.tamper(name(4), lambda _: WAYS[way])
    store = SnapshotStore(disk, META)
    loaded = store.load()
    assert loaded.snapshot == snapshot(3)
    assert loaded.rejected
    assert [(reject.name, bool(reject.reason)) for reject in loaded.rejected] == [("snapshot.0004.bin", True)]
    assert store.next_number == 5


def test_a_flip_of_any_byte_makes_a_snapshot_invalid() -> None:  # row 89
    disk = made(SimFs(), 3, 4)
    for at in range(len(GOOD)):
        twin = disk.clone()
        twin.tamper(name(4), lambda data, at=at: data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])  # type: ignore[misc]
        assert stored(twin)[1] == snapshot(3), at


def test_a_valid_snapshot_stays_until_two_newer_valid_ones_exist() -> None:  # row 90
    disk = made(SimFs(), 3, 4)
    disk.tamper(name(4), lambda data: data[:-1])
    store, _ = stored(disk)
    store.install(snapshot(5))
    assert numbers(disk) == ["snapshot.0003.bin", "snapshot.0004.bin", "snapshot.0005.bin"]
    assert store.kept() == [{"": LogPosition(50, 84)}, {"": LogPosition(30, 84)}]
    disk.tamper(name(5), lambda data: data[:-1])
    assert stored(disk)[1] == snapshot(3)


def test_all_invalid_is_no_snapshot_and_says_why() -> None:  # rows 92, 93 as far as files go
    disk = made(SimFs(), 3, 4)
    for number in (3, 4):
        disk.tamper(name(number), lambda data: data[:-1])
    loaded = SnapshotStore(disk, META).load()
    assert loaded.snapshot is None
    assert [reject.name for reject in loaded.rejected] == ["snapshot.0004.bin", "snapshot.0003.bin"]


def test_only_unknown_versions_refuse_the_start() -> None:  # row 94
    disk = made(SimFs(), 3, 4)
    for number in (3, 4):
        disk.tamper(name(number), lambda data: break_header(data, 4, b"\x63"))
    before = disk.dump()
    with pytest.raises(UnsupportedVersion, match="version 99"):
        SnapshotStore(disk, META).load()
    assert disk.dump() == before


def test_the_padded_name_counts_and_the_other_is_ignored() -> None:  # row 96
    disk = made(SimFs(), 7)
    disk.plant(f"{META}/snapshot.7.bin", encode_snapshot(snapshot(6)))
    disk.plant(f"{META}/snapshot.0008.bin.tmp", b"half")
    loaded = SnapshotStore(disk, META).load()
    assert loaded.snapshot == snapshot(7)
    assert loaded.ignored == ["snapshot.7.bin"]


def test_a_snapshot_that_cannot_be_read_stops_the_start() -> None:  # row 98
    disk = made(SimFs(), 3, 4)
    faults = FaultFs(disk)
    faults.fail("pread", name(4))
    with pytest.raises(OSError, match="Input/output"):
        SnapshotStore(faults, META).load()
    for kind in ("listdir", "open"):
        faults.fail(kind, "*", code=errno.EACCES)
        with pytest.raises(PermissionError):
            SnapshotStore(faults, META).load()
        faults.clear()


def test_a_short_write_of_the_temp_goes_on() -> None:  # row 86
    disk = made(SimFs(), 3)
    faults = FaultFs(disk)
    store, _ = stored(faults)
    faults.short("pwrite", "*.tmp", keep=7, times=3)
    store.install(snapshot(4))
    assert disk.contents(name(4)) == GOOD


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("kind", ["create", "pwrite", "fsync", "rename", "sync_dir"])
def test_a_failed_install_unlinks_nothing_and_is_tried_again_under_a_new_number(
    kind: str, code: int
) -> None:  # rows 86, 87
    disk = made(SimFs(), 3, 4)
    faults = FaultFs(OrderFs(disk))
    store, _ = stored(faults)
    faults.fail(kind, code=code)  # type: ignore[arg-type]
    with pytest.raises(OSError):
        store.install(snapshot(5))
    assert {"snapshot.0003.bin", "snapshot.0004.bin"} <= set(numbers(disk))
    assert not [call for call in faults.trace if call.kind == "unlink"]
    assert store.kept() == [{"": LogPosition(40, 84)}, {"": LogPosition(30, 84)}]
    assert store.next_number == 6
    store.install(snapshot(6))
    assert stored(disk)[1] == snapshot(6)
    assert "snapshot.0004.bin" in numbers(disk)  # 5 may be there, but only 4 is known to be good
    disk.power_cut()
    assert stored(disk.reboot())[1] == snapshot(6)


def test_an_old_snapshot_that_cannot_be_unlinked_is_removed_later() -> None:
    disk = made(SimFs(), 3, 4)
    faults = FaultFs(disk)
    store, _ = stored(faults)
    faults.fail("unlink", times=FOREVER)
    store.install(snapshot(5))
    assert len(numbers(disk)) == 3
    faults.clear()
    store.install(snapshot(6))
    assert numbers(disk) == ["snapshot.0005.bin", "snapshot.0006.bin"]


def test_a_crash_at_any_call_of_an_install_leaves_the_old_or_the_new_one() -> None:  # row 88
    disk = made(SimFs(), 3, 4)
    points = CrashPoints(disk)
    store, _ = stored(RetryingFs(FaultFs(OrderFs(disk), hook=points.before)))
    store.install(snapshot(5))
    installed = len(points.points)
    store.install(snapshot(6))
    points.end()
    states = list(points.states(rng=Random(1)))
    assert len(states) > 80
    for state in states:
        after = SnapshotStore(state.disk, META)
        found = after.load().snapshot
        assert found in (snapshot(4), snapshot(5), snapshot(6)), state
        assert len(after.kept()) == 2, state
        if state.point >= installed:
            assert found != snapshot(4), state
        after.install(snapshot(after.next_number, at=7))
        assert len(SnapshotStore(state.disk, META).kept()) <= 2


def test_a_snapshot_whose_name_was_not_synced_before_a_kill_is_durable_before_its_position_counts() -> None:
    disk = made(SimFs(), 3, 4)
    faults = FaultFs(disk)
    store, _ = stored(faults)
    faults.crash("sync_dir")
    with pytest.raises(SimCrash):
        store.install(snapshot(5))
    disk = disk.reboot()
    store, found = stored(disk)
    assert found == snapshot(5)
    assert store.kept()[0] == {"": LogPosition(50, 84)}
    disk.power_cut()
    assert stored(disk.reboot())[1] == snapshot(5)


def test_positions_and_layout_come_from_the_body() -> None:
    assert positions_of(snapshot(2)) == {"": LogPosition(20, 84)}
    assert layout_of(snapshot(2)) == (1, 1)
