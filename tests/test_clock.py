"""Time never runs backwards where decisions are made."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.clock import BELIEVE_MS, JUMP_MS, START_JUMP_MS, Clock, EngineClock, Host, SystemClock, SystemHost
from topics.testing.clock import SimClock, SimHost

YEAR_MS = 365 * 24 * 3_600_000


def pair(wall_ms: int = 1_000_000_000) -> tuple[SimClock, EngineClock]:
    wall = SimClock(wall_ms=wall_ms)
    engine = EngineClock(wall)
    assert engine.now_ms() == wall_ms
    return wall, engine


def test_the_engine_clock_goes_on_while_the_wall_clock_is_behind_until_they_meet() -> None:
    wall, engine = pair()
    began = engine.now_ms()
    wall.set_wall_ms(began - 3_600)
    for _ in range(16):
        wall.advance(1_000)
        engine.now_ms()
    assert engine.now_ms() == began + 15_000, "a sixteenth slower"
    wall.advance(3_600 * 16)
    assert engine.now_ms() == wall.wall_ms()
    wall.advance(5)
    assert engine.now_ms() == wall.wall_ms()


def test_small_looks_are_slowed_down_as_large_ones_are() -> None:
    wall, engine = pair()
    began = engine.now_ms()
    wall.set_wall_ms(began - 10_000)
    for _ in range(1_600):
        wall.advance(1)
        engine.now_ms()
    assert engine.now_ms() == began + 1_500


@pytest.mark.parametrize("ahead_ms", [JUMP_MS + 1, YEAR_MS])
def test_a_wall_clock_far_ahead_for_a_moment_changes_nothing(ahead_ms: int) -> None:
    wall, engine = pair()
    right = wall.wall_ms()
    wall.set_wall_ms(right + ahead_ms)
    assert engine.now_ms() == right
    wall.advance(BELIEVE_MS - 1)
    assert engine.now_ms() == right + BELIEVE_MS - 1
    wall.set_wall_ms(right + BELIEVE_MS - 1)
    assert engine.now_ms() == wall.wall_ms()
    wall.advance(BELIEVE_MS * 3)
    assert engine.now_ms() == wall.wall_ms()


def test_a_wall_clock_that_stays_far_ahead_is_believed_after_a_while_and_time_goes_on_when_it_is_set_right() -> None:
    wall, engine = pair()
    wall.set_wall_ms(wall.wall_ms() + YEAR_MS)
    engine.now_ms()
    wall.advance(BELIEVE_MS)
    wrong = wall.wall_ms()
    assert engine.now_ms() == wrong
    wall.set_wall_ms(wrong - YEAR_MS)
    assert engine.now_ms() == wrong
    wall.advance(16_000)
    assert engine.now_ms() == wrong + 15_000


def test_a_wall_clock_that_keeps_jumping_is_not_believed() -> None:
    wall, engine = pair()
    right = wall.wall_ms()
    for turn in range(1, 9):
        wall.set_wall_ms(right + turn * BELIEVE_MS // 2 + turn * YEAR_MS)
        engine.now_ms()
        wall.advance(BELIEVE_MS // 2)
    assert engine.now_ms() == right + 4 * BELIEVE_MS


def test_a_step_of_a_time_daemon_is_followed_at_once() -> None:
    wall, engine = pair()
    wall.set_wall_ms(wall.wall_ms() + JUMP_MS)
    assert engine.now_ms() == wall.wall_ms()


def test_a_start_takes_the_wall_clock_unless_stored_times_speak_against_it() -> None:
    for stored_ms, wall_ms, now_ms in [
        (0, 10**12, 10**12),
        (5_000, 4_000, 5_000),
        (5_000, 5_000 + START_JUMP_MS, 5_000 + START_JUMP_MS),
        (5_000, 5_001 + START_JUMP_MS, 5_000),
    ]:
        engine = EngineClock(wall := SimClock(wall_ms=wall_ms))
        engine.raise_to(stored_ms)
        assert engine.now_ms() == now_ms
        wall.advance(BELIEVE_MS)
        assert engine.now_ms() == (
            wall.wall_ms() if now_ms == wall_ms or wall_ms > now_ms else 5_000 + BELIEVE_MS - 1_000
        )


def test_recovery_can_raise_the_engine_clock_but_not_lower_it() -> None:
    engine = EngineClock(SimClock(wall_ms=1000))
    engine.raise_to(5000)
    assert engine.now_ms() == 5000
    engine.raise_to(2000)
    assert engine.now_ms() == 5000


STEPS = st.tuples(st.integers(0, 2**40), st.integers(0, 20 * 60_000))


@given(st.lists(STEPS, max_size=30))
def test_whatever_the_wall_clock_does_now_goes_on_and_by_no_more_than_it_may(steps: list[tuple[int, int]]) -> None:
    wall, engine = pair()
    before = engine.now_ms()
    for wall_ms, passed_ms in steps:
        wall.set_wall_ms(wall_ms)
        wall.advance(passed_ms)
        now = engine.now_ms()
        assert now - before >= passed_ms - passed_ms // 16 - 1, "never standing still"
        assert now <= max(before + passed_ms, wall.wall_ms()), "never ahead of both"
        before = now


@given(st.lists(STEPS, max_size=20))
def test_once_the_wall_clock_is_right_again_the_engine_clock_comes_back_to_it(steps: list[tuple[int, int]]) -> None:
    wall, engine = pair(2**39)
    right = wall.wall_ms()
    for wall_ms, passed_ms in steps:
        wall.set_wall_ms(wall_ms)
        wall.advance(passed_ms)
        right += passed_ms
        engine.now_ms()
    wall.set_wall_ms(right)
    apart = abs(engine.now_ms() - right)
    wall.advance(max(apart * 16, BELIEVE_MS))
    engine.now_ms()
    wall.advance(16)
    assert engine.now_ms() == wall.wall_ms()


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
