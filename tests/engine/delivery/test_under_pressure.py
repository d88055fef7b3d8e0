"""`docs/spec/delivery.md#sec-17`, properties 21 to 24: pressure changes when, never what; a refusal stores nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.delivery.rig import Rig, bodies_of, write_body

from topics.engine.delivery.ready import B0, B1, B2, B3
from topics.engine.ticket import Ticket
from topics.errors import Throttled, WalFull
from topics.model.names import parse_match
from topics.model.results import Appended
from topics.model.router import RouterDef
from topics.wire.incoming.requests import (
    decode_write,
)


def press(rig: Rig, trace: Iterable[float]) -> None:
    """Every sample of the pressure shows the next value of the trace, and then its last one."""
    back_pressure, values, last = rig.live.delivery.back_pressure, iter(trace), 0.0

    def sample(*, depth: int, busy: float) -> float:
        nonlocal last
        last = next(values, last)
        back_pressure.pressure = last
        return last

    back_pressure.sample = sample  # type: ignore[method-assign]


def hold_at(rig: Rig, pressure: float, *, samples: int = 3) -> None:
    press(rig, [pressure])
    for _ in range(samples):
        rig.live.delivery.sample()


# --- property 21 ------------------------------------------------------------------------------------------------------

traces = st.lists(st.sampled_from([0.0, 0.2, 0.3, 0.5, 0.79, 0.81, 0.9, 0.97, 1.0]), min_size=1, max_size=30)


@settings(max_examples=40)
@given(traces, st.lists(st.integers(0, 3), min_size=1, max_size=16))
def test_every_reader_gets_the_same_records_in_the_same_order_for_every_pressure_trace(
    trace: list[float], script: list[int]
) -> None:
    rig = Rig()
    rig.put("a", priority=-1000)
    rig.put("b", priority=800)
    streams = [rig.watch({"a": 0, "b": 0}), rig.watch({"a": 0, "b": 0}, limit=2)]
    socket = rig.socket()
    socket.say("subscribe", topics={"a": {}, "b": {}})
    rig.pump()
    press(rig, trace)
    written: dict[str, list[int]] = {"a": [], "b": []}
    for number, pause in enumerate(script):
        name = "ab"[number % 2]
        rig.write(name, number)
        written[name].append(number)
        rig.advance(pause * 25)
    # A deferred topic waits up to ten seconds per service, and the second stream takes two records at a time.
    rig.advance(11_000 * 5, tick_ms=1_000)
    for name, data in written.items():
        assert [stream.records(name) for stream in streams] == [data, data]
        assert socket.records(name) == data


def test_stage_1_joins_records_into_one_frame_and_holds_no_longer_than_the_window() -> None:
    rig = Rig()
    rig.put("a")
    stream = rig.watch({"a": 0})
    hold_at(rig, 0.6)
    for number in range(5):
        rig.write("a", number)
        rig.clock.advance(1)
    assert stream.records("a") == []
    rig.clock.advance(5)
    rig.sim.tick()
    assert stream.records("a") == [0, 1, 2, 3, 4]
    assert stream.events().count("record") == 1


def test_a_held_push_ends_when_the_batch_is_full_by_records() -> None:
    rig = Rig()
    rig.put("a")
    stream = rig.watch({"a": 0}, limit=3)
    hold_at(rig, 1.0)
    rig.write("a", 1)
    rig.write("a", 2)
    assert stream.records("a") == []
    rig.write("a", 3)
    assert stream.records("a") == [1, 2, 3]


def test_a_held_push_ends_when_the_batch_is_full_by_bytes() -> None:
    rig = Rig()
    rig.put("a")
    stream = rig.watch({"a": 0}, budget=20)
    hold_at(rig, 1.0)
    rig.write("a", "x" * 5)
    assert stream.records("a") == []
    rig.write("a", "y" * 12)
    assert stream.records("a") == ["x" * 5, "y" * 12]


def pushed_at_once(rig: Rig, stream: Any, writes: int) -> list[bool]:
    """A writer that waits until each of its records is delivered: was it held?"""
    at_once = []
    for number in range(writes):
        seen = len(stream.records("a"))
        rig.write("a", number)
        at_once.append(len(stream.records("a")) > seen)
        rig.clock.advance(25)
        rig.sim.tick()
        assert len(stream.records("a")) == seen + 1
    return at_once


def test_stage_1_a_hold_that_gathers_nothing_is_tried_again_more_and_more_rarely() -> None:
    rig = Rig()
    rig.put("a")
    stream = rig.watch({"a": 0})
    hold_at(rig, 1.0)
    at_once = pushed_at_once(rig, stream, 300)
    held = [at for at, was_pushed in enumerate(at_once) if not was_pushed]
    assert held == [0, 2, 5, 10, 19, 36, 69, 134, 199, 264]  # 1, 2, 4 ... pushes in between, 64 at most


def test_stage_1_a_hold_that_gathers_something_is_followed_by_the_next() -> None:
    rig = Rig()
    rig.put("a")
    stream = rig.watch({"a": 0})
    hold_at(rig, 1.0)
    pushed_at_once(rig, stream, 10)  # holds are skipped for a while, and then the next push would be held
    for turn in range(5):
        seen = len(stream.records("a"))
        rig.write("a", turn)
        rig.write("a", turn)
        assert len(stream.records("a")) == seen, turn
        rig.clock.advance(25)
        rig.sim.tick()
        assert len(stream.records("a")) == seen + 2


def test_nothing_is_held_for_those_who_just_came_or_have_a_backlog() -> None:
    rig = Rig()
    rig.write("a", *range(50))
    hold_at(rig, 1.0)
    stream = rig.watch({"a": 0}, limit=10)
    assert stream.records("a") == list(range(50))


def test_a_plain_diff_is_never_held() -> None:
    rig = Rig()
    rig.put("a")
    stream = rig.watch({"a": 0})
    hold_at(rig, 1.0)
    rig.write("a", 1)
    assert stream.records("a") == []
    assert len(bodies_of(rig.diff("a", 0))) == 1


def test_stage_2_widens_the_commit_window_and_gives_it_back() -> None:
    rig = Rig(commit_window_us=700)
    writer = rig.sim.writers[0]
    hold_at(rig, 0.41, samples=1)
    assert writer.window_s == pytest.approx((0.5 + 9.5 * 0.41) / 1000)
    hold_at(rig, 1.0, samples=1)
    assert writer.window_s == pytest.approx(0.010)
    hold_at(rig, 0.4, samples=1)
    assert writer.window_s == pytest.approx(0.0007)


# --- property 22 ------------------------------------------------------------------------------------------------------


def test_a_deferred_topic_is_readable_by_diff_all_the_time() -> None:
    rig = Rig()
    rig.put("low", priority=-1000)
    rig.put("high", priority=900)
    stream = rig.watch({"low": 0, "high": 0})
    hold_at(rig, 0.9)
    assert rig.live.delivery.deferring
    for number in range(10):
        rig.write("low", number)
        rig.write("high", number)
        rig.advance(100)
        assert [record["data"] for record in bodies_of(rig.diff("low", 0))] == list(range(number + 1))
    assert stream.records("low") == []
    assert stream.records("high") == list(range(10))
    rig.advance(10_050, tick_ms=250)
    assert stream.records("low") == list(range(10))


def test_deferral_ends_with_the_pressure() -> None:
    rig = Rig()
    rig.put("low", priority=-1000)
    stream = rig.watch({"low": 0})
    hold_at(rig, 0.9)
    rig.write("low", 1)
    rig.advance(500)
    assert stream.records("low") == []
    hold_at(rig, 0.5, samples=1)
    rig.advance(50)
    assert stream.records("low") == [1]


def test_a_deleted_topic_is_announced_although_it_is_deferred() -> None:
    rig = Rig()
    rig.put("low", priority=-1000)
    stream = rig.watch({"low": 0})
    hold_at(rig, 0.9)
    rig.drop("low")
    assert stream.events() == ["caught-up", "topic-deleted"]


# --- property 23 ------------------------------------------------------------------------------------------------------


class Full:
    """A rig whose log queue has three places, all of them taken."""

    def __init__(self) -> None:
        self.rig = Rig(wal_queue=3)
        self.rig.put("a")
        self.rig.put("gone")
        self.accepted = [self.submit(number) for number in range(3)]
        assert not self.rig.sim.kernel.commit.has_room(0)

    def submit(self, number: int, *, may_refuse: bool = True) -> Ticket[Appended]:
        batch = decode_write(write_body(number)).batch()
        ticket: Ticket[Appended] = self.rig.engine.write("a", batch, may_refuse=may_refuse)
        return ticket

    def facts(self) -> Any:
        topic, kernel = self.rig.topic("a"), self.rig.sim.kernel
        reserved = topic.reserved_head, topic.staged_count, topic.staged_bytes, kernel.engine.state.staged_bytes
        return topic.head, topic.count, topic.bytes, reserved, kernel.store.groups[0].stats.bytes_written

    def wait(self, elapsed_ms: int) -> None:
        """Time passes and nothing is written."""
        self.rig.clock.advance(elapsed_ms)
        self.rig.engine.tick()


def test_at_full_pressure_a_full_queue_refuses_at_once_and_changes_nothing() -> None:
    full = Full()
    hold_at(full.rig, 0.95)
    before = full.facts()
    with pytest.raises(Throttled) as refused:
        full.submit(9)
    assert refused.value.detail == {"retry_after_ms": 1000}
    with pytest.raises(Throttled):
        full.rig.engine.delete_records("a", before_seq=9)
    with pytest.raises(Throttled):
        full.rig.engine.delete_records("a", match=parse_match("x"))
    with pytest.raises(Throttled):
        full.rig.engine.drop_topic("gone")
    assert full.facts() == before
    assert full.rig.sim.kernel.commit.full_total == 4
    full.rig.pump()
    assert [ticket.result().first_seq for ticket in full.accepted] == [1, 2, 3]
    assert full.rig.topic("a").head == 3


def test_below_full_pressure_a_write_waits_for_room_and_says_how_long() -> None:
    full = Full()
    hold_at(full.rig, 0.94)
    before = full.facts()
    waiting = [full.submit(number) for number in (7, 8)]
    full.wait(400)
    assert not any(ticket.done for ticket in waiting)
    assert full.facts() == before
    full.rig.pump()
    assert [ticket.result().first_seq for ticket in waiting] == [4, 5]
    assert [ticket.wait_ms for ticket in waiting] == [400, 400]
    assert full.accepted[0].wait_ms == 0
    assert full.rig.sim.kernel.commit.full_total == 0


def test_after_1000_ms_without_room_a_write_is_refused_without_detail() -> None:
    full = Full()
    before = full.facts()
    waiting = full.submit(7)
    full.wait(999)
    assert not waiting.done
    full.wait(1)
    with pytest.raises(WalFull) as refused:
        waiting.result()
    assert refused.value.detail is None
    assert refused.value.status == 429
    assert full.facts() == before
    full.rig.pump()
    assert full.rig.topic("a").head == 3


def test_nobody_overtakes_those_who_wait() -> None:
    full = Full()
    first = full.submit(7)
    for _ in range(3):
        assert full.rig.sim.driver.turn()
    second = full.submit(8)
    full.rig.pump()
    assert (first.result().first_seq, second.result().first_seq) == (4, 5)


@given(st.lists(st.sampled_from(["write", "write", "insist", "delete", "turn", "wait", "high", "low"]), max_size=60))
def test_every_accepted_command_is_answered_and_refusals_leave_no_trace(script: list[str]) -> None:
    rig = Rig(wal_queue=3)
    rig.put("a")
    tickets: list[Ticket[Any]] = []
    refused = 0
    for number, action in enumerate(script):
        batch = decode_write(write_body(number)).batch()
        try:
            if action in ("write", "insist"):
                tickets.append(rig.engine.write("a", batch, may_refuse=action == "write"))
            elif action == "delete":
                tickets.append(rig.engine.delete_records("a", match=parse_match("nothing")))
        except Throttled:
            refused += 1
        if action == "turn":
            rig.sim.driver.turn()
        elif action == "wait":
            rig.clock.advance(600)
            rig.engine.tick()
        elif action in ("high", "low"):
            hold_at(rig, 1.0 if action == "high" else 0.0, samples=1)
    rig.pump()
    assert all(ticket.done for ticket in tickets)
    appended = [ticket.value for ticket in tickets if isinstance(ticket.value, Appended)]
    assert rig.topic("a").head == len(appended) == rig.topic("a").count
    assert [record["$seq"] for record in bodies_of(rig.diff("a", 0))] == [done.first_seq for done in appended]


def test_not_more_than_so_many_commands_wait() -> None:
    full = Full()
    limit = full.rig.engine.admission.tuning.admit_waiting_max
    for number in range(limit):
        full.submit(number)
    with pytest.raises(WalFull):
        full.submit(limit)


# --- property 24 ------------------------------------------------------------------------------------------------------


def test_with_backpressure_disabled_a_write_waits_even_at_full_pressure() -> None:
    full = Full()
    hold_at(full.rig, 1.0)
    waiting = full.submit(7, may_refuse=False)
    full.wait(950)
    assert not waiting.done
    full.rig.pump()
    assert waiting.result().first_seq == 4


def test_but_not_longer_than_1000_ms() -> None:
    full = Full()
    hold_at(full.rig, 1.0)
    waiting = full.submit(7, may_refuse=False)
    full.wait(1000)
    assert isinstance(waiting.error, WalFull)


def test_reads_and_ephemeral_writes_are_never_refused_for_pressure() -> None:
    full = Full()
    rig = full.rig
    rig.pump()
    rig.put("e", durability="ephemeral")
    rig.write("e", 1)
    for number in range(3):
        full.submit(number)
    hold_at(rig, 1.0)
    batch = decode_write(write_body(2)).batch()
    assert rig.engine.write("e", batch).result().first_seq == 2
    assert rig.engine.topic_state("a").result().head_seq == 3


def test_an_ephemeral_write_that_needs_a_ceiling_waits_for_room_like_any_other() -> None:
    full = Full()
    full.rig.pump()
    full.rig.put("e", durability="ephemeral")
    for number in range(3):
        full.submit(number)
    batch = decode_write(write_body(1)).batch()
    first: Ticket[Appended] = full.rig.engine.write("e", batch)
    assert not first.done
    full.rig.pump()
    assert first.result().first_seq == 1


def test_ephemeral_writes_behind_one_that_waits_for_a_ceiling_stay_behind_it() -> None:
    full = Full()
    rig = full.rig
    rig.pump()
    rig.put("e", durability="ephemeral")
    rig.write("e", 1)
    topic = rig.topic("e")
    for number in range(3):
        full.submit(number)
    many, one = [decode_write(b'{"records":[%b]}' % b",".join([b'{"data":1}'] * count)).batch() for count in (600, 1)]
    assert topic.head + one.count <= topic.ceiling < topic.head + many.count
    first = rig.engine.write("e", many)
    hold_at(rig, 1.0)
    second = rig.engine.write("e", one)
    assert [first.done, second.done] == [False, False]
    rig.pump()
    assert [first.result().first_seq, second.result().first_seq] == [2, 602]
    assert rig.engine.write("e", one).result().first_seq == 603


def test_a_write_refused_for_a_full_queue_leaves_no_ceiling_behind() -> None:
    """Else the next one would be shown above a ceiling that nobody synced."""
    rig = Rig(wal_queue=2)
    rig.put("a")
    rig.put("b")
    batch = decode_write(write_body(1)).batch()
    accepted = [rig.engine.write("b", batch) for _ in range(2)]
    topic = rig.topic("a")
    with pytest.raises(WalFull):
        rig.engine.writes.append(topic, batch)
    rig.pump()
    assert all(ticket.done for ticket in accepted)
    rig.write("a", 1)
    assert topic.head == 1 <= topic.ceiling


# --- stage 3 and routers ----------------------------------------------------------------------------------------------


def router_from(rig: Rig, source: str, dest: str) -> None:
    definition = RouterDef(name=f"{source}->{dest}", source=source, dest=dest)
    rig.sim.call(lambda engine: engine.routers.put(definition))


def test_while_deferring_router_copies_wait_one_band_below_their_source_and_none_is_lost() -> None:
    rig = Rig()
    rig.put("source", priority=800)
    rig.put("busy", priority=600)
    router_from(rig, "source", "dest")
    rig.write("source", 0)
    assert rig.topic("dest").head == 1
    hold_at(rig, 0.9)
    rig.write("source", 1, deliver=False)
    rig.engine.turn()
    routed = rig.live.delivery._of(rig.topic("source")).router
    assert routed is not None
    assert routed.band == B3
    rig.pump()
    assert rig.topic("dest").head == 2
    for number in range(2, 20):
        rig.write("source", number)
    assert [record["data"] for record in bodies_of(rig.diff("dest", 0))] == list(range(20))


@pytest.mark.parametrize(("priority", "band"), [(1000, B3), (600, B2), (300, B1), (100, B1), (-1, B0)])
def test_deferred_router_work_is_not_below_b1_unless_its_topic_is_in_b0(priority: int, band: int) -> None:
    rig = Rig()
    rig.put("source", priority=priority)
    router_from(rig, "source", "dest")
    hold_at(rig, 0.9)
    rig.write("source", 1, deliver=False)
    rig.engine.turn()
    routed = rig.live.delivery._of(rig.topic("source")).router
    assert routed is not None
    assert routed.band == band


def test_copies_of_a_deferred_source_come_with_its_age_at_the_latest_and_reads_of_the_dest_do_not_wait() -> None:
    rig = Rig()
    rig.put("source", priority=-1000)
    router_from(rig, "source", "dest")
    stream = rig.watch({"dest": 0})
    hold_at(rig, 0.9)
    rig.write("source", 1)
    rig.advance(1_000)
    assert stream.records("dest") == []
    assert len(bodies_of(rig.diff("dest", 0))) == 1  # a read brings its routers up to date
    rig.write("source", 2)
    rig.advance(10_100, tick_ms=100)
    assert stream.records("dest") == [1, 2]
