"""Time never runs backwards where decisions are made."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.clock import Clock, EngineClock, Host, SystemClock, SystemHost
from topics.testing.clock import SimClock, SimHost


def test_the_engine_clock_stands_still_while_the_wall_clock_is_behind() -> None:
    wall = SimClock(wall_ms=1000)
    engine = EngineClock(wall)
    assert engine.now_ms() == 1000
    wall.set_wall_ms(400)
    assert engine.now_ms() == 1000
    wall.set_wall_ms(1001)
    assert engine.now_ms() == 1001


def test_recovery_can_raise_the_engine_clock_but_not_lower_it() -> None:
    engine = EngineClock(SimClock(wall_ms=1000))
    engine.raise_to(5000)
    assert engine.now_ms() == 5000
    engine.raise_to(2000)
    assert engine.now_ms() == 5000


@given(st.lists(st.integers(min_value=0, max_value=2**48), max_size=30))
def test_whatever_the_wall_clock_does_now_is_the_highest_so_far(walls: list[int]) -> None:
    wall = SimClock(wall_ms=0)
    engine = EngineClock(wall)
    highest = 0
    for wall_ms in walls:
        wall.set_wall_ms(wall_ms)
        highest = max(highest, wall_ms)
        assert engine.now_ms() == highest


def test_a_simulated_clock_moves_only_when_told() -> None:
    clock = SimClock(wall_ms=7)
    assert (clock.wall_ms(), clock.monotonic()) == (7, 0.0)
    clock.advance(1500)
    assert (clock.wall_ms(), clock.monotonic()) == (1507, 1.5)
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)


def test_turning_the_wall_clock_leaves_measuring_alone() -> None:
    clock = SimClock()
    clock.set_wall_ms(0)
    assert clock.monotonic() == 0.0


def test_the_system_clock_shows_milliseconds_of_the_unix_epoch() -> None:
    before = int(time.time() * 1000) - 1
    clock: Clock = SystemClock()
    assert before <= clock.wall_ms() <= int(time.time() * 1000) + 1


def test_a_boot_id_is_read_without_the_line_end(tmp_path: Path) -> None:
    file = tmp_path / "boot_id"
    file.write_text("abc-1\n")
    host: Host = SystemHost(file)
    assert host.boot_id() == "abc-1"


def test_an_unreadable_boot_id_is_empty(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"\xff\xfe")
    assert SystemHost(tmp_path / "missing").boot_id() == ""
    assert SystemHost(garbage).boot_id() == ""


def test_a_simulated_reboot_changes_the_boot_id() -> None:
    host: Host = (sim := SimHost())
    first = host.boot_id()
    sim.reboot()
    assert host.boot_id() != first
