"""`docs/spec/delivery.md#sec-17`, properties 17 to 20; 21 to 24 need a kernel and are in `test_under_pressure`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.engine.delivery.pressure import BackPressure, Deferral, Tuning, commit_window_ms, hold_ms, pressure_of

TUNING = Tuning()
depths = st.integers(0, 200)
waits = st.floats(0, 100)
shares = st.floats(0, 1)
pressures = st.floats(0, 1)

# --- property 17 ------------------------------------------------------------------------------------------------------


@given(depths, waits, shares, depths, waits, shares)
def test_pressure_lies_in_0_to_1_and_never_falls_when_a_signal_rises(
    depth: int, wait: float, busy: float, more_depth: int, more_wait: float, more_busy: float
) -> None:
    tuning = TUNING
    low = pressure_of(depth=depth, ewma_ms=wait, busy=busy, tuning=tuning)
    assert 0 <= low <= 1
    for high in (
        pressure_of(depth=depth + more_depth, ewma_ms=wait, busy=busy, tuning=tuning),
        pressure_of(depth=depth, ewma_ms=wait + more_wait, busy=busy, tuning=tuning),
        pressure_of(depth=depth, ewma_ms=wait, busy=min(busy + more_busy, 1.0), tuning=tuning),
    ):
        assert low <= high <= 1


@given(st.lists(waits, min_size=1, max_size=200))
def test_a_second_after_the_last_drain_there_is_no_pressure(served: list[float]) -> None:
    back_pressure = BackPressure(TUNING)
    for wait in served:
        back_pressure.served(wait)
    back_pressure.sample(depth=0, busy=0.0)
    for _ in range(9):
        pressure = back_pressure.sample(depth=0, busy=0.0)
    assert pressure < 0.01


@pytest.mark.parametrize(("depth", "backlog"), [(0, 0), (1, 0), (2, 1 / 15), (16, 1), (1000, 1)])
def test_one_waiting_topic_is_no_pressure_and_sixteen_are_full(depth: int, backlog: float) -> None:
    assert pressure_of(depth=depth, ewma_ms=0, busy=0, tuning=TUNING) == pytest.approx(backlog)


def test_a_mean_wait_of_1_ms_is_the_edge_of_stage_1() -> None:
    assert pressure_of(depth=0, ewma_ms=1.0, busy=0, tuning=TUNING) == pytest.approx(0.2)


def test_the_mean_wait_moves_by_a_fifth_and_single_waits_count_at_most_20_ms() -> None:
    back_pressure = BackPressure(TUNING)
    back_pressure.served(10_000)
    assert back_pressure.ewma_ms == pytest.approx(4)
    back_pressure.served(0)
    assert back_pressure.ewma_ms == pytest.approx(3.2)


def test_the_mean_wait_is_kept_while_something_waits_or_was_served() -> None:
    back_pressure = BackPressure(TUNING)
    back_pressure.served(20)
    back_pressure.sample(depth=0, busy=0)
    assert back_pressure.ewma_ms == pytest.approx(4)
    back_pressure.sample(depth=1, busy=0)
    assert back_pressure.ewma_ms == pytest.approx(4)
    back_pressure.sample(depth=0, busy=0)
    assert back_pressure.ewma_ms == pytest.approx(2)


# --- property 18 ------------------------------------------------------------------------------------------------------


def test_a_busy_pool_alone_never_defers() -> None:
    back_pressure, deferral = BackPressure(TUNING), Deferral(TUNING)
    for _ in range(100):
        assert back_pressure.sample(depth=0, busy=1.0) == pytest.approx(0.8)
        assert not deferral.sample(back_pressure.pressure)


# --- property 19 ------------------------------------------------------------------------------------------------------


def test_deferring_takes_three_samples_in_a_row() -> None:
    deferral = Deferral(TUNING)
    trace = [0.9, 0.9, 0.8, 0.9, 0.9, 0.9, 0.7, 0.6, 0.8, 0.59, 0.9]
    assert [deferral.sample(pressure) for pressure in trace] == [*[False] * 5, *[True] * 4, False, False]


@given(st.lists(pressures, max_size=60))
def test_between_the_thresholds_nothing_starts_and_nothing_ends(trace: list[float]) -> None:
    deferral, was_on, above = Deferral(TUNING), False, 0
    for pressure in trace:
        is_on = deferral.sample(pressure)
        above = above + 1 if pressure > 0.8 else 0
        if 0.6 <= pressure <= 0.8:
            assert is_on == was_on
        elif pressure < 0.6:
            assert not is_on
        elif not was_on:
            assert is_on == (above >= 3)
        was_on = is_on


# --- property 20 ------------------------------------------------------------------------------------------------------


def test_the_coalescing_window_grows_from_0_to_20_ms() -> None:
    assert [hold_ms(pressure, TUNING) for pressure in (0, 0.2, 0.6, 1.0)] == pytest.approx([0, 0, 10, 20])


def test_the_commit_bound_grows_from_4_point_3_to_10_ms() -> None:
    assert commit_window_ms(0.4, TUNING) is None
    assert commit_window_ms(0.4 + 1e-9, TUNING) == pytest.approx(4.3)
    assert commit_window_ms(1.0, TUNING) == pytest.approx(10)


@given(pressures, pressures)
def test_both_windows_are_monotone(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert hold_ms(low, TUNING) <= hold_ms(high, TUNING)
    assert (commit_window_ms(low, TUNING) or 0) <= (commit_window_ms(high, TUNING) or 0)
