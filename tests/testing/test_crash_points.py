"""Crashing at every call of one run: install, write_all and the lock text, and that the enumeration is complete."""

from collections import Counter
from random import Random

import pytest

from topics.storage.fs import Fs, install, make_dirs, read_file, remove_tree, write_all
from topics.testing import POWER_PATTERNS, FaultFs, SimCrash, SimFs, crash_states
from topics.testing.crashes import CrashState


@pytest.fixture
def disk() -> SimFs:
    disk = SimFs()
    make_dirs(disk, "data/wal")
    install(disk, "data/wal/CURRENT", b"old content, quite long" * 60)
    return disk


OLD = b"old content, quite long" * 60
NEW = b"new" * 700


def test_install_leaves_the_old_bytes_or_the_new_at_every_crash(disk: SimFs) -> None:
    seen: Counter[bytes] = Counter()
    for seed in range(10):
        for state in crash_states(disk.clone(), lambda fs: install(fs, "data/wal/CURRENT", NEW), rng=Random(seed)):
            content = read_file(state.disk, "data/wal/CURRENT")
            assert content in (OLD, NEW), state
            seen[content] += 1
    assert set(seen) == {OLD, NEW}


def test_a_first_install_is_absent_or_whole(disk: SimFs) -> None:
    for state in crash_states(disk, lambda fs: install(fs, "data/wal/new", NEW), rng=Random(2)):
        assert not state.disk.exists("data/wal/new") or read_file(state.disk, "data/wal/new") == NEW, state


def test_what_install_returned_for_is_there_whatever_happens(disk: SimFs) -> None:
    states = list(crash_states(disk, lambda fs: install(fs, "data/wal/CURRENT", NEW), rng=Random(3)))
    last = [state for state in states if state.call is None]
    assert [state.how for state in last] == ["kill"], "nothing may be pending once it returned"
    assert read_file(last[0].disk, "data/wal/CURRENT") == NEW


@pytest.mark.parametrize("left_out", ["fsync", "sync_dir", "rename"])
def test_an_install_without_one_of_its_steps_is_found_out(disk: SimFs, left_out: str) -> None:
    def run(fs: Fs) -> None:
        temp = fs.open("data/wal/CURRENT.tmp" if left_out != "rename" else "data/wal/CURRENT", "create")
        write_all(temp, 0, NEW)
        if left_out != "fsync":
            temp.fsync()
        if left_out != "rename":
            fs.rename("data/wal/CURRENT.tmp", "data/wal/CURRENT")
        if left_out != "sync_dir":
            fs.sync_dir("data/wal")

    states = list(crash_states(disk, run, rng=Random(4)))
    broken = [s for s in states if s.disk.contents("data/wal/CURRENT") not in (OLD, NEW)]
    lost = [s for s in states if s.call is None and s.disk.contents("data/wal/CURRENT") != NEW]
    assert broken or lost


def test_crash_points_equal_running_again_and_stopping_at_each_call(disk: SimFs) -> None:
    """The clones of one run are the disks that a run per call would leave."""

    def run(fs: Fs) -> None:
        install(fs, "data/wal/CURRENT", NEW)
        fs.mkdir("data/topics")
        file = fs.open("data/topics/a", "new")
        write_all(file, 0, b"abc")
        file.datasync()
        file.truncate(1)
        fs.unlink("data/wal/CURRENT")
        remove_tree(fs, "data/topics")

    cloned = [
        state.disk.dump() for state in crash_states(disk.clone(), run, rng=Random(5), patterns=()) if state.call
    ]  # fmt: skip
    rerun: list[dict[str, bytes]] = []
    counted = FaultFs(disk.clone())
    run(counted)
    for k in range(1, counted.calls + 1):
        fresh = disk.clone()
        fs = FaultFs(fresh)
        fs.crash(at=k)
        with pytest.raises(SimCrash):
            run(fs)
        rerun.append(fresh.reboot().dump())
    assert {str(dump) for dump in cloned} == {str(dump) for dump in rerun}


def test_every_point_comes_as_a_kill_and_as_every_power_cut(disk: SimFs) -> None:
    acked: list[int] = []

    def run(fs: Fs) -> None:
        file = fs.open("data/wal/log", "create")
        fs.sync_dir("data/wal")
        for i in range(3):
            write_all(file, i, b"x")
            file.datasync()
            acked.append(i)

    states = list(crash_states(disk, run, rng=Random(6), note=lambda: len(acked)))
    by_point: dict[int, list[CrashState]] = {}
    for state in states:
        by_point.setdefault(state.point, []).append(state)
    assert [group[0].note for group in by_point.values()] == [0, 0, 0, 0, 1, 1, 2, 2, 3]
    for group in by_point.values():
        assert [s.how for s in group] in (["kill"], ["kill", *POWER_PATTERNS])
    for state in states:
        if state.disk.exists("data/wal/log"):
            assert isinstance(state.note, int)
            assert state.disk.contents("data/wal/log")[: state.note] == b"x" * state.note, state
        else:
            assert state.note == 0


def test_a_lock_text_is_old_or_a_prefix_of_the_new_at_every_crash() -> None:
    disk = SimFs()
    lock = disk.lock(".lock")
    lock.replace_text("pid=1\nboot=aaaa\n")
    disk.sync_dir(".")
    disk = disk.reboot()
    new = "pid=22\nboot=-\n"
    for seed in range(5):
        for state in crash_states(
            disk.clone(),
            lambda fs: fs.lock(".lock").replace_text(new),
            rng=Random(seed),
            patterns=("keep_all", "lose_all", "keep_prefix_torn"),
        ):
            text = state.disk.contents(".lock").decode()
            assert text == "pid=1\nboot=aaaa\n" or new.startswith(text), state
