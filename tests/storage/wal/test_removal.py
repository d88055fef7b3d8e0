"""WAL files go when both snapshots have passed them, and not before (`docs/spec/storage.md#sec-4-5`).

Rows 37, 38 and 90 of `docs/fault-matrix.md`.
"""

from __future__ import annotations

from random import Random

from tests.storage.wal.rig import FLAT, Log, Model, new_log

from topics.storage.wal.file_removal import remove_absorbed
from topics.storage.wal.wal_files import LogPosition
from topics.testing import CrashPoints


def rotated(count: int = 4) -> Log:
    log = new_log()
    while len(log.numbers()) < count:
        log.send(3)
    return log


def remove(log: Log, *positions: LogPosition, referenced: frozenset[int] = frozenset(), key: str = FLAT) -> int:
    return remove_absorbed(
        log.fs,
        log.files,
        key=key,
        dir=log.data.group(key),
        snapshots=[{key: position} for position in positions],
        referenced=referenced.__contains__,
        active=log.groups[key].position.file,
    )


def test_a_file_goes_when_both_positions_lie_in_a_later_one() -> None:
    log = rotated()
    first, second, third, fourth = log.numbers()
    assert remove(log, LogPosition(third, 84), LogPosition(second, 84)) == 1
    assert log.numbers() == [second, third, fourth]
    assert not log.disk.exists(log.path(first))
    assert remove(log, LogPosition(fourth, 84), LogPosition(fourth, 84)) == 2
    assert log.numbers() == [fourth]


def test_the_active_file_never_goes() -> None:
    log = rotated(2)
    first, active = log.numbers()
    assert remove(log, LogPosition(active + 100, 0), LogPosition(active + 100, 0)) == 1
    assert log.numbers() == [active]
    assert first == 1


def test_one_snapshot_alone_lets_nothing_go() -> None:
    log = rotated()
    last = log.numbers()[-1]
    assert remove(log, LogPosition(last, 84)) == 0
    assert remove_absorbed(
        log.fs, log.files, key=FLAT, dir="data/wal", snapshots=[{FLAT: LogPosition(last, 84)}, {}],
        referenced=lambda _: False, active=last,
    ) == 0  # fmt: skip


def test_a_file_that_a_location_points_into_stays_and_keeps_those_behind_it() -> None:
    log = rotated()
    numbers = log.numbers()
    held = frozenset({log.files.of_group(FLAT)[1].index})
    assert remove(log, LogPosition(numbers[-1], 84), LogPosition(numbers[-1], 84), referenced=held) == 1
    assert log.numbers() == numbers[1:]


def test_a_failed_unlink_is_tried_again_and_has_no_other_effect() -> None:  # row 38
    log = rotated()
    last = log.group.position
    log.faults.fail("unlink", at=2)
    assert remove(log, last, last) == 1
    log.send(1)
    assert remove(log, last, last) == 2
    log.faults.fail("sync_dir")
    assert remove(log, last, last) == 0
    log.starts = {FLAT: last}
    after = log.crash().restart()
    assert after.scans[FLAT].end.kind == "clean"


def test_files_that_come_back_after_a_power_cut_are_passed_over() -> None:  # row 37
    log = rotated()
    numbers = log.numbers()
    in_last = [s for s in log.model.sent[FLAT] if log.files.get(s.sub.file).number == numbers[-1]]
    position = LogPosition(numbers[-1], in_last[0].sub.offset)
    wanted = [s.data for s in in_last]
    points = CrashPoints(log.disk)
    log.faults.hook = points.before
    remove(log, position, position)
    points.end()
    counts = set()
    for state in points.states(rng=Random(2)):
        after = Log(state.disk, Model(), starts={FLAT: position}).start()
        assert after.found() == wanted, state
        assert after.scans[FLAT].end.kind == "clean", state
        counts.add(len(after.numbers()))
        after.send(1)
    assert len(counts) > 1  # some came back, some did not


def test_either_snapshot_can_still_be_replayed_after_any_removal() -> None:  # row 90
    log = new_log()
    rng = Random(4)
    positions = [LogPosition(1, 0), LogPosition(1, 0)]
    for _ in range(40):
        for _ in range(rng.randrange(1, 8)):
            log.send(rng.randrange(1, 4))
        positions = [log.group.position, positions[0]]
        remove(log, *positions)
        for position in positions:
            after = Log(log.disk.clone(), Model(), starts={FLAT: position}).start()
            wanted = [
                s.data
                for s in log.model.sent[FLAT]
                if s.sub.file in log.files._by_index and (log.files.get(s.sub.file).number, s.sub.offset) >= position
            ]
            assert after.found() == wanted
            assert after.scans[FLAT].end.kind == "clean"
            assert not after.scans[FLAT].beyond


def left_over() -> tuple[Log, dict[str, LogPosition]]:
    """A flat log, then two shards; the flat group is no longer written."""
    log = rotated(2)
    log.shards = 2
    after = log.kill().restart()
    return after, {key: after.scans[key].position for key in after.scans}


def test_a_left_over_group_goes_whole_when_both_snapshots_have_its_end() -> None:
    log, ends = left_over()
    end = ends[FLAT]
    early = LogPosition(end.file, end.off - 1)

    def attempt(*positions: LogPosition) -> int:
        return remove_absorbed(
            log.fs, log.files, key=FLAT, dir="data/wal", snapshots=[{FLAT: p} for p in positions],
            referenced=lambda _: False, active=None, end=end,
        )  # fmt: skip

    assert attempt(end, early) == 1
    assert log.disk.exists("data/wal/CURRENT")
    seen = len(log.faults.trace)
    assert attempt(end, end) == 1
    unlinked = [call.path for call in log.faults.trace[seen:] if call.kind == "unlink"]
    assert unlinked == ["data/wal/CURRENT", log.path(end.file)]
    assert [name for name in log.disk.listdir("data/wal") if name.startswith("wal-")] == []
    assert log.disk.is_dir("data/wal")


def test_the_directory_of_a_left_over_shard_goes_with_its_files() -> None:
    log = new_log(shards=3)
    for key in log.groups:
        log.send(2, key=key)
    log.shards = 2
    log.model.sent.pop("shard-02")
    log = log.kill().restart()
    end = log.scans["shard-02"].position
    removed = remove_absorbed(
        log.fs, log.files, key="shard-02", dir="data/wal/shard-02", snapshots=[{"shard-02": end}] * 2,
        referenced=lambda _: False, active=None, end=end,
    )  # fmt: skip
    assert removed == 1
    assert not log.disk.exists("data/wal/shard-02")
    log.disk.power_cut()
    assert not log.disk.reboot().exists("data/wal/shard-02")
