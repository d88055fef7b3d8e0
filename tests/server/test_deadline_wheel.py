"""The wheel: everybody is asked in time, nobody twice, and traffic costs it nothing."""

from __future__ import annotations

from topics.server.connections.hub import SLOTS, DeadlineWheel


class Waiter:
    def __init__(self, *, again_s: float = 0.0) -> None:
        self.wheel_tick = -1
        self.asked: list[float] = []
        self._again_s = again_s

    def on_timer(self, now_s: float) -> float:
        self.asked.append(now_s)
        return now_s + self._again_s if self._again_s else float("-inf")


def run(wheel: DeadlineWheel, *, until_s: int) -> None:
    for second in range(int(wheel.now_s) + 1, until_s + 1):
        step(wheel, float(second))


def step(wheel: DeadlineWheel, now_s: float) -> None:
    wheel.advance(now_s)
    while wheel.ask(3):
        pass


def test_a_waiter_is_asked_within_a_tick_of_its_time() -> None:
    wheel, waiter = DeadlineWheel(0.0), Waiter()
    wheel.arm(waiter, 10.5)
    run(wheel, until_s=10)
    assert waiter.asked == []
    run(wheel, until_s=30)
    assert waiter.asked == [11.0]


def test_a_sooner_time_moves_a_waiter_and_a_later_one_does_not() -> None:
    wheel, waiter = DeadlineWheel(0.0), Waiter()
    wheel.arm(waiter, 20.0)
    wheel.arm(waiter, 5.0)
    wheel.arm(waiter, 40.0)
    run(wheel, until_s=60)
    assert waiter.asked == [6.0]


def test_a_waiter_says_when_to_be_asked_again() -> None:
    wheel, waiter = DeadlineWheel(0.0), Waiter(again_s=10.0)
    wheel.arm(waiter, 10.0)
    run(wheel, until_s=45)
    assert waiter.asked == [11.0, 22.0, 33.0, 44.0]


def test_a_time_beyond_the_wheel_is_asked_for_on_the_way() -> None:
    wheel, waiter = DeadlineWheel(0.0), Waiter(again_s=1000.0)
    wheel.arm(waiter, 1000.0)
    run(wheel, until_s=SLOTS)
    assert len(waiter.asked) == 1


def test_who_leaves_is_not_asked() -> None:
    wheel, waiter = DeadlineWheel(0.0), Waiter()
    wheel.arm(waiter, 5.0)
    wheel.disarm(waiter)
    wheel.disarm(waiter)
    run(wheel, until_s=100)
    assert waiter.asked == []


def test_a_pause_longer_than_the_wheel_asks_everybody_once() -> None:
    wheel = DeadlineWheel(0.0)
    waiters = [Waiter() for _ in range(50)]
    for number, waiter in enumerate(waiters):
        wheel.arm(waiter, float(number))
    step(wheel, 10_000.0)
    assert all(len(waiter.asked) == 1 for waiter in waiters)


def test_a_waiter_that_arms_itself_while_asked_is_not_armed_twice() -> None:
    wheel = DeadlineWheel(0.0)

    class Selfish(Waiter):
        def on_timer(self, now_s: float) -> float:
            self.asked.append(now_s)
            wheel.arm(self, now_s + 2.0)
            return now_s + 50.0

    waiter = Selfish()
    wheel.arm(waiter, 1.0)
    run(wheel, until_s=10)
    assert waiter.asked == [2.0, 5.0, 8.0]


def test_a_crowd_is_asked_in_parts_and_who_leaves_meanwhile_is_not() -> None:
    wheel = DeadlineWheel(0.0)
    waiters = [Waiter() for _ in range(10)]
    for waiter in waiters:
        wheel.arm(waiter, 1.0)
    wheel.advance(2.0)
    assert wheel.ask(4)
    for waiter in waiters:
        wheel.disarm(waiter)
    assert not wheel.ask(100)
    assert sum(len(waiter.asked) for waiter in waiters) == 4
