"""A mistake of ours in a callback: whoever waits behind it is answered with an error, and nobody else is held up.

Each kind of callback raises once: what a commit calls, what a fetch or a job calls, what listeners, polls, claims,
routers, dead letters and joint writes do when their turn comes. Then everything works again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.engine.world import World, batch

from topics.core.reading.walk import ReadRequest
from topics.engine.context import FetchedRecords
from topics.engine.delivery.delivery import DeliveryLoop
from topics.engine.queues import claim_pass as queue_pass
from topics.engine.queues import dead_letters as queue_letters
from topics.engine.reading import reads
from topics.engine.reading.long_polls import LongPolls
from topics.engine.routers import step as router_step
from topics.engine.ticket import Ticket, chain, either_way, gathered, resolved
from topics.engine.writing.writes import Writes
from topics.runtime import file_work as jobs
from topics.runtime.background import checkpointer, snapshotter

pytestmark = pytest.mark.callbacks_fail


class Mistake(Exception):
    pass


class Once:
    """Raises at its first call, and does what it stands for afterwards."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self.real = real
        self.raised = 0

    def __get__(self, instance: object, owner: type) -> Callable[..., Any]:
        return lambda *args, **named: self(instance, *args, **named)

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.raised += 1
        if self.raised == 1:
            raise Mistake
        return self.real(*args, **named)


@pytest.fixture
def world() -> World:
    world = World(recent_cache_bytes=0, segment_max_events=4)
    for name in ("t", "other"):
        world.topic(name, durability="fsync")
    world.queue("q", durability="fsync", leases_durable=True, max_deliveries=1, dead_letter="dead")
    world.write("t", *range(6))
    world.write("q", *range(6))
    world.checkpoint()
    return world


@pytest.fixture
def break_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, str], Once]:
    def patch(owner: Any, name: str) -> Once:
        once = Once(getattr(owner, name))
        monkeypatch.setattr(owner, name, once)
        return once

    return patch


BreakOnce = Callable[[Any, str], Once]


def answers(world: World, *tickets: Ticket[Any]) -> list[BaseException | None]:
    """Every one of them is answered, once the kernel is at rest."""
    for _ in range(3):
        world.advance(1100)
    assert all(ticket.done for ticket in tickets), "somebody was never answered"
    return [ticket.error for ticket in tickets]


def works(world: World) -> None:
    """Nothing is stuck: writes, reads, claims, checkpoints and snapshots."""
    world.write("t", "after")
    assert world.data("t")[-1] == "after"
    world.write("q", "after")
    while job := world.claim(max=100):
        world.ack(*(one.seq for one in job))
    world.checkpoint()
    world.snapshot()
    assert world.killed().data("t") == world.data("t")


# --- tickets ---------------------------------------------------------------------------------------------------------


def _raise(*_: object) -> Any:
    raise Mistake


def test_a_waiter_that_raises_costs_no_other_waiter_its_turn() -> None:
    ticket: Ticket[int] = Ticket()
    behind: Ticket[int] = Ticket()
    told: list[int] = []
    ticket.then(_raise)
    ticket.then(_raise, behind.abandon)
    ticket.then(lambda done: told.append(done.result()))
    derived = [chain(ticket, _raise), gathered([ticket]), either_way(ticket)]
    ticket.resolve(7)
    assert told == [7]
    assert isinstance(behind.error, Mistake)
    assert [type(one.error) for one in derived] == [Mistake, type(None), type(None)]


def test_a_waiter_of_a_ticket_that_is_done_fails_those_behind_it_too() -> None:
    behind: Ticket[int] = Ticket()
    ticket: Ticket[int] = Ticket()
    ticket.resolve(1)
    ticket.then(_raise, behind.abandon)
    assert isinstance(behind.error, Mistake)


# --- commits ---------------------------------------------------------------------------------------------------------


def test_writes_of_one_sync_are_answered_whatever_the_waiters_of_others_do(world: World) -> None:
    tickets = [world.engine.write(name, batch(name)) for name in ("t", "other", "t", "q")]
    for ticket in tickets:
        ticket.then(_raise)
    assert answers(world, *tickets) == [None] * 4
    works(world)


@pytest.mark.parametrize("listeners", ["on_published", "on_removed"])
def test_a_listener_that_raises_costs_neither_the_write_its_answer_nor_other_listeners_their_news(
    world: World, listeners: str
) -> None:
    heard: list[object] = []
    first, last = _raise, lambda *told: heard.append(told)
    all_ids = range(1 << 32)
    told = getattr(world.engine.context, listeners)
    told[:0] = [first if listeners == "on_removed" else (all_ids, first)]
    told.append(last if listeners == "on_removed" else (all_ids, last))
    written, deleted = world.engine.write("t", batch(1)), world.engine.delete_records("t", before_seq=3, match=None)
    assert answers(world, written, deleted) == [None, None]
    assert heard
    del told[0]
    works(world)


def test_the_applying_of_a_commit_that_raises_fails_its_write_and_no_other(world: World, break_once: BreakOnce) -> None:
    break_once(Writes, "_publish")
    first, second = world.engine.write("t", batch(1)), world.engine.write("other", batch(2))
    errors = answers(world, first, second)
    assert [type(error) for error in errors] == [Mistake, type(None)]


def test_joint_writes_are_answered_whatever_one_of_their_waiters_does(world: World) -> None:
    class Clumsy(Ticket[Any]):
        def written(self, first_seq: int, count: int, *, epoch: int, written_s: float, sync_ms: float) -> None:
            raise Mistake

    clumsy = Clumsy()
    before = world.engine.write("t", batch(1))
    assert world.engine.join("t", batch(2), clumsy, runs=[1])
    behind = world.engine.write("t", batch(3))
    errors = answers(world, before, clumsy, behind)
    assert [type(error) for error in errors] == [type(None), Mistake, type(None)]
    works(world)


def test_whoever_waits_for_a_place_or_for_a_sync_is_told_although_another_raises(world: World) -> None:
    told: list[object] = []
    commit = world.engine.context.commit
    commit.on_synced[:0] = [_raise]
    commit.on_synced.append(lambda *_: told.append("synced"))
    commit.room_waiters.extend((_raise, lambda: told.append("room")))
    assert answers(world, world.engine.write("t", batch(1))) == [None]
    assert set(told) == {"synced", "room"}


# --- reads, jobs, polls ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["_fetched", "_feed"])
def test_a_read_whose_fetch_goes_wrong_is_answered(world: World, break_once: BreakOnce, step: str) -> None:
    once = break_once(reads._Walk, step)
    tickets = [world.engine.read("t", ReadRequest(from_seq=0)) for _ in range(2)]
    errors = answers(world, *tickets)
    assert once.raised >= 2
    assert [type(error) for error in errors] == [Mistake, type(None)]
    works(world)


def test_a_fetch_whose_outcome_goes_wrong_is_answered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "FetchedRecords", Once(FetchedRecords))
    error, other = answers(world, *[world.engine.read("t", ReadRequest(from_seq=0)) for _ in range(2)])
    assert (type(error), other) == (Mistake, None)
    works(world)


def test_a_long_poll_whose_turn_goes_wrong_is_answered(world: World, break_once: BreakOnce) -> None:
    delivery = DeliveryLoop(
        world.engine.context, world.engine.reads, soon=world.kernel.driver.soon, later=lambda *_: None
    )
    polls = LongPolls(world.engine, delivery)
    head = world.state("t").head_seq
    waiting = [polls.read("t", ReadRequest(from_seq=head), wait_ms=30_000).ticket for _ in range(2)]
    break_once(type(polls._waiting[0]), "_read_done")
    world.write("t", "news")
    errors = answers(world, *waiting)
    assert sorted(type(error).__name__ for error in errors) == ["Mistake", "NoneType"]


# --- queues ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["_leased", "_deliver", "_jobs", "_set_aside", "_cleared"])
def test_a_claim_whose_pass_goes_wrong_is_answered_and_its_jobs_are_not_lost(
    world: World, break_once: BreakOnce, step: str
) -> None:
    break_once(queue_pass.ClaimPass, step)
    first, second = world.claim_later(node="v", max=3), world.claim_later(max=3)
    errors = answers(world, first, second)
    assert {type(error) for error in errors} <= {Mistake, type(None)}
    assert world.counters()[0] + world.counters()[1] == world.state("q").count
    works(world)


@pytest.mark.parametrize("step", ["_read", "_sent", "_deleted"])
def test_dead_letters_whose_move_goes_wrong_hold_up_no_claim(world: World, break_once: BreakOnce, step: str) -> None:
    seqs = world.seqs(max=2)
    world.nack(*seqs)
    once = break_once(queue_letters._Move, step)
    assert answers(world, world.claim_later(max=2)) == [None]
    assert once.raised
    works(world)


def test_an_ack_whose_answer_goes_wrong_is_answered(world: World, break_once: BreakOnce) -> None:
    seqs = world.seqs(max=2)
    break_once(type(world.engine.queues), "_acked")
    (error,) = answers(world, world.engine.queues.ack("q", node="w", seqs=seqs))
    assert isinstance(error, Mistake)
    works(world)


# --- routers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["_arrived", "_fetched", "_copy", "_send"])
def test_a_read_behind_a_router_whose_step_goes_wrong_is_answered_and_the_router_goes_on(
    world: World, break_once: BreakOnce, step: str
) -> None:
    world.router("r", "t", "copies")
    break_once(router_step.Step, step)
    written = world.engine.write("t", batch("x"))
    read = chain(written, lambda _: world.engine.read("copies", ReadRequest(from_seq=0)))
    answers(world, written, read)
    assert world.data("copies")[-1] == "x"
    works(world)


# --- the background --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["_mark", "_marked", "_switched", "_switch"])
def test_a_checkpoint_whose_callbacks_go_wrong_is_over_and_the_next_one_runs(
    world: World, break_once: BreakOnce, step: str
) -> None:
    world.write("t", 1)
    break_once(checkpointer.Checkpointer, step)
    answers(world, world.kernel.kernel.checkpointer.run(), world.kernel.kernel.checkpointer.run())
    works(world)


@pytest.mark.parametrize("step", ["_write", "_install_in_background", "_topic_item", "_install"])
def test_a_snapshot_whose_callbacks_go_wrong_is_over_and_the_next_one_runs(
    world: World, break_once: BreakOnce, step: str
) -> None:
    break_once(snapshotter.Snapshotter, step)
    error, other = answers(world, world.kernel.kernel.snapshotter.run(), world.kernel.kernel.snapshotter.run())
    assert (type(error), other) == (Mistake, None)
    works(world)


def test_a_chain_of_ten_thousand_steps_that_each_wait_is_answered() -> None:
    waiting: list[Ticket[int]] = []

    def step(left: int) -> Ticket[int]:
        if not left:
            return resolved(7)
        waiting.append(Ticket())
        return chain(waiting[-1], step)

    answers: list[int] = []
    step(10_000).then(lambda done: answers.append(done.result()))
    for left in reversed(range(10_000)):
        waiting[-1].resolve(left)
    assert answers == [7]
