"""When memory is given back: after a burst, not during one."""

from __future__ import annotations

from topics.limits import MIB
from topics.server.allocator import AGAIN_S, Burst, give_back, tune_allocator


def test_a_burst_is_over_when_a_quarter_is_left_and_once_more_a_while_later() -> None:
    burst = Burst()
    loads = [0, 100 * MIB, 200 * MIB, 51 * MIB, 50 * MIB, 10 * MIB, 10 * MIB]
    assert [burst.is_over(load, now_s) for now_s, load in enumerate(loads)] == [False] * 4 + [True] + [False] * 2
    assert burst.is_over(0, 4 + AGAIN_S)
    assert not burst.is_over(0, 5 + AGAIN_S)


def test_a_small_load_is_no_burst() -> None:
    burst = Burst()
    assert not any(burst.is_over(load, now_s) for now_s, load in enumerate([0, 60 * MIB, 0, 60 * MIB, 0]))


def test_giving_back_harms_nobody() -> None:
    tune_allocator()
    blocks = [bytearray(MIB) for _ in range(8)]
    give_back()
    assert all(len(block) == MIB for block in blocks)
