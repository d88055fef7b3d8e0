"""`docs/spec/delivery.md#sec-17`, properties 6, 8 and 9 with real reads."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.delivery.rig import Rig, Stream, bodies_of

from topics.api.live.subscription import Subscription
from topics.core.reading.walk import ReadRequest
from topics.engine.delivery.watched import Service
from topics.engine.reading import long_polls as longpoll
from topics.engine.reading.long_polls import LongPolls, Poll

# --- property 6 -------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-1000, 1000) | st.none(), min_size=2, max_size=4), st.integers(0, 12))
def test_priority_changes_no_diff_no_order_and_no_floor(priorities: list[int | None], from_seq: int) -> None:
    seen: list[Any] = []
    for priority in priorities:
        rig = Rig()
        rig.put("a", priority=priority, cap_records=5)
        stream = rig.watch({"a": 0}, reads=True)
        for number in range(8):
            rig.write("a", number)
        outcome = rig.diff("a", from_seq)
        topic = rig.topic("a")
        records = [(record["$seq"], record["data"]) for record in bodies_of(outcome)]
        gap = outcome.tombstone and (outcome.tombstone.gap_from, outcome.tombstone.gap_to)
        seen.append((records, gap, outcome.head_seq, topic.earliest_seq, topic.evict_floor, stream.records("a")))
    assert all(this == seen[0] for this in seen)


# --- property 8 -------------------------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(st.sampled_from(["publish", "register", "turn", "turn", "turn", "leave"]), st.integers(0, 2)),
    max_size=60,
)


@given(steps)
def test_no_publication_is_missed_for_any_order_of_publish_register_read_and_sleep(
    script: list[tuple[str, int]],
) -> None:
    rig = Rig()
    names = ["a", "b", "c"]
    for name in names:
        rig.put(name)
    written: dict[str, list[int]] = {name: [] for name in names}
    open_streams: list[tuple[Stream, str, int]] = []
    for number, (action, which) in enumerate(script):
        name = names[which]
        if action == "publish":
            rig.write(name, number, deliver=False)
            written[name].append(number)
        elif action == "register":
            open_streams.append((rig.open(rig.session({name: "tail"}), pump=False), name, len(written[name])))
        elif action == "turn":
            rig.sim.driver.turn()
        elif open_streams:
            open_streams.pop(which % len(open_streams))[0].cut()
    rig.pump()
    for stream, name, start in open_streams:
        assert stream.records(name) == written[name][start:]
        assert stream.events(name)[-1:] == ["caught-up"]


@given(st.lists(st.sampled_from(["publish", "poll", "turn", "turn"]), max_size=40))
def test_long_polls_are_woken_by_every_publication(script: list[str]) -> None:
    rig = Rig()
    rig.put("a")
    polls = LongPolls(rig.sim.engine, rig.live.delivery)
    waiting: list[tuple[Any, int]] = []
    for number, action in enumerate(script):
        if action == "publish":
            rig.write("a", number, deliver=False)
        elif action == "poll":
            head = rig.topic("a").head
            waiting.append((polls.read("a", ReadRequest(from_seq=head), wait_ms=1000), head))
        else:
            rig.sim.driver.turn()
    rig.pump()
    for poll, head in waiting:
        assert poll.ticket.done == (rig.topic("a").head > head)


def test_a_long_poll_whose_client_has_gone_ends_at_once() -> None:
    rig = Rig()
    rig.put("a")
    polls = LongPolls(rig.sim.engine, rig.live.delivery)
    poll = polls.read("a", ReadRequest(from_seq=0), wait_ms=30_000)
    waited = not poll.ticket.done
    poll.cancel()
    rig.pump()
    assert (waited, poll.ticket.done) == (True, True)
    poll.cancel()  # the connection may end after the answer too


def test_a_long_poll_ends_in_time_when_the_wall_clock_is_turned_back() -> None:
    rig = Rig()
    rig.put("a")
    polls = LongPolls(rig.sim.engine, rig.live.delivery)
    poll = polls.read("a", ReadRequest(from_seq=0), wait_ms=1000)
    rig.clock.set_wall_ms(rig.clock.wall_ms() - 3_600_000)
    rig.advance(1000)
    polls.tick()
    rig.pump()
    assert poll.ticket.done


def test_what_long_polls_were_answered_is_not_kept_until_their_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longpoll, "DEADLINES_SPARE", 8)
    rig = Rig()
    rig.put("a", cap_records=1)
    polls = LongPolls(rig.sim.engine, rig.live.delivery)
    for number in range(50):
        poll = polls.read("a", ReadRequest(from_seq=number), wait_ms=30_000)
        rig.write("a", number)
        assert poll.ticket.done
    assert len(polls._deadlines) <= 9
    del poll
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, Poll) and one._polls is polls]


# --- property 9 -------------------------------------------------------------------------------------------------------


def test_a_service_sends_each_watcher_at_most_one_batch() -> None:
    rig = Rig()
    rig.write("a", *range(100))
    streams = [rig.open(rig.session({"a": 0}, limit=10), pump=False) for _ in range(3)]
    for batches in range(1, 11):
        rig.live.delivery.step()
        assert [stream.events().count("record") for stream in streams] == [batches] * 3


def test_a_long_backlog_in_one_topic_leaves_room_for_the_others() -> None:
    rig = Rig()
    rig.write("a", *range(1000))
    rig.write("b", *range(20))
    long, short = (rig.open(rig.session({name: 0}, limit=10), pump=False) for name in "ab")
    for _ in range(5):
        rig.live.delivery.step()
    assert short.records("b") == list(range(20))
    assert len(long.records("a")) <= 40


def test_a_service_looks_only_at_those_who_are_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream, "shares", False)  # everyone is served alone
    rig = Rig()
    rig.write("a", *range(5))
    for _ in range(50):
        rig.watch({"a": 0})
    served: list[Subscription] = []
    original = Subscription.serve

    def serve(subscription: Subscription, service: Service) -> bool:
        served.append(subscription)
        return original(subscription, service)

    monkeypatch.setattr(Subscription, "serve", serve)
    rig.watch({"a": 0})
    assert len(served) == 1
    rig.write("a", 6)
    assert len(served) == 1 + 51
