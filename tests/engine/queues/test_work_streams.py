"""Work streams: supplied promptly, never beyond their room, released when they end
(`docs/spec/semantics.md#sec-16-7`)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.engine.world import JobList, World

from topics.core.queue.operations import queue_of
from topics.engine.queues.claim_pass import ClaimedJob
from topics.engine.queues.work_streams import WorkStream
from topics.errors import NotAQueue, TopicNotFound, TopicsError


class Client(JobList):
    def __init__(
        self, world: World, name: str = "q", node: str = "s", max: int = 1, lease_ms: int | None = None
    ) -> None:
        super().__init__()
        self.ended: list[TopicsError] = []
        self.lags = False
        self.stream = world.engine.queues.open_stream(name, node=node, max=max, lease_ms=lease_ms)
        self.stream.start(self)
        world.kernel.pump()

    def jobs_leased(self, jobs: list[ClaimedJob]) -> None:
        self.extend(jobs)
        if self.lags:
            self.stream.pause()

    def queue_gone(self, error: TopicsError) -> None:
        self.ended.append(error)

    @property
    def seqs(self) -> list[int]:
        return [job.seq for job in self]


@pytest.fixture(params=[False, True], ids=["leases-in-memory", "leases-durable"])
def world(request: pytest.FixtureRequest) -> World:
    world = World()
    world.queue("q", leases_durable=request.param)
    return world


def test_jobs_that_are_there_come_at_once_up_to_the_room(world: World) -> None:
    world.write("q", *range(5))
    client = Client(world, max=3)
    assert client.seqs == [1, 2, 3]
    assert world.counters() == (2, 3, 0)


def test_an_append_wakes_a_stream(world: World) -> None:
    client = Client(world, max=2)
    assert client.seqs == []
    world.write("q", 1)
    assert client.seqs == [1]


def test_each_job_is_pushed_once(world: World) -> None:
    client = Client(world, max=10)
    world.write("q", 1, 2)
    world.advance(1000)
    world.write("q", 3)
    assert client.seqs == [1, 2, 3]


@pytest.mark.parametrize("free", ["ack", "nack", "delete"])
def test_a_freed_slot_is_filled_promptly(world: World, free: str) -> None:
    world.write("q", 1, 2, 3)
    client = Client(world, max=1)
    if free == "ack":
        world.ack(1, node="s")
        assert client.seqs == [1, 2]
    elif free == "nack":
        world.nack(1, node="s", delay_ms=10_000)
        assert client.seqs == [1, 2]
    else:
        world.delete("q", before=2)
        assert client.seqs == [1, 2]


def test_an_expired_lease_frees_its_slot_and_the_job_comes_again(world: World) -> None:
    world.write("q", 1)
    client = Client(world, max=1, lease_ms=1000)
    world.advance(1000)
    assert client.seqs == [1]
    world.advance(1)
    assert client.seqs == [1, 1]
    assert client[1].deliveries == 2


def test_the_end_of_a_delay_wakes_a_stream(world: World) -> None:
    world.write("q", 1)
    world.claim()
    client = Client(world, max=1)
    world.nack(1, delay_ms=700)
    world.advance(699)
    assert client.seqs == []
    world.advance(1)
    assert client.seqs == [1]


def test_another_workers_expired_lease_wakes_a_stream(world: World) -> None:
    world.write("q", 1)
    world.claim(lease_ms=1000)
    client = Client(world, max=1)
    world.advance(1001)
    assert client.seqs == [1]


def test_closing_releases_exactly_what_was_delivered_on_it(world: World) -> None:
    world.write("q", *range(5))
    assert world.seqs(node="s", max=2) == [1, 2]
    client = Client(world, node="s", max=2)
    assert client.seqs == [3, 4]
    client.stream.close()
    assert world.counters() == (3, 2, 0)
    assert world.seqs(node="t", max=9) == [3, 4, 5]
    assert world.ack(1, 2, node="s").acked == 2


def test_released_jobs_head_the_line_and_keep_their_count(world: World) -> None:
    world.write("q", 1, 2)
    Client(world, max=1).stream.close()
    [job] = world.claim()
    assert (job.seq, job.deliveries) == (1, 2)


def test_closing_twice_does_no_harm(world: World) -> None:
    world.write("q", 1)
    client = Client(world)
    client.stream.close()
    [job] = world.claim()
    client.stream.close()
    assert world.ack(1, fences=[job.lease_id]).acked == 1


def test_a_stream_that_closes_during_its_claim_gets_nothing(world: World) -> None:
    world.write("q", 1)
    stream = world.engine.queues.open_stream("q", node="s")
    got = JobList()
    stream.start(got)
    world.engine.turn()
    stream.close()
    world.kernel.pump()
    assert got == []
    assert world.counters() == (1, 0, 0)


def test_streams_share_what_there_is_evenly(world: World) -> None:
    clients = [Client(world, node=f"n{at}", max=10) for at in range(4)]
    world.write("q", *range(8))
    assert [len(client.seqs) for client in clients] == [2, 2, 2, 2]


def test_a_lagging_stream_claims_nothing_until_it_goes_on(world: World) -> None:
    client = Client(world, max=2)
    client.stream.pause()
    world.write("q", 1, 2)
    assert client.seqs == []
    client.stream.go_on()
    world.kernel.pump()
    assert client.seqs == [1, 2]


def test_large_jobs_are_claimed_in_portions_so_that_a_client_that_stops_holds_few(world: World) -> None:
    world.write("q", *["x" * 100_000] * 20)
    client = Client(world, max=1)
    client.stream.max = 1000
    client.lags = True
    client.stream.go_on()
    world.kernel.pump()
    assert 1 < len(client) <= 4
    client.lags = False
    client.stream.go_on()
    world.kernel.pump()
    assert client.seqs == list(range(1, 21))


def test_jobs_whose_frames_were_dropped_are_given_back(world: World) -> None:
    world.write("q", 1, 2)
    client = Client(world, max=2)
    client.stream.pause()
    client.stream.give_back(client[1:])
    world.kernel.pump()
    assert world.counters() == (1, 1, 0)
    assert world.seqs() == [2]


def test_a_stream_takes_part_in_a_coalescing_window() -> None:
    world = World()
    world.queue("q", claim_jitter_ms=20)
    client = Client(world, max=10)
    world.write("q", *range(4))
    ticket = world.claim_later(max=10)
    world.kernel.pump()
    assert client.seqs == []
    world.advance(20)
    assert len(client.seqs) == 2
    assert len(ticket.result().jobs) == 2


def test_a_stream_asks_for_no_more_than_its_room_while_a_window_is_open() -> None:
    world = World()
    world.queue("q", claim_jitter_ms=20)
    client = Client(world, max=3)
    world.write("q", *range(12))
    world.advance(20)
    assert client.seqs == [1, 2, 3]
    for seq in client.seqs:
        world.ack(seq, node="s")  # each one frees a place, and the stream asks for it in the same window
    world.write("q", "more")
    world.advance(20)
    assert client.seqs == [1, 2, 3, 4, 5, 6]
    assert world.counters() == (7, 3, 0)


@pytest.mark.parametrize("leave", [WorkStream.close, WorkStream.pause])
def test_a_stream_that_closes_or_lags_in_a_window_takes_no_share_of_it(leave: Callable[[WorkStream], None]) -> None:
    world = World()
    world.queue("q", claim_jitter_ms=20)
    client = Client(world, max=10)
    world.write("q", *range(4))
    ticket = world.claim_later(max=10)
    leave(client.stream)
    world.advance(20)
    jobs = ticket.result().jobs
    assert [(job.seq, job.deliveries) for job in jobs] == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert client.seqs == []


def test_a_stream_that_lagged_in_a_window_goes_on_with_its_whole_room() -> None:
    world = World()
    world.queue("q", claim_jitter_ms=20)
    client = Client(world, max=3)
    world.write("q", *range(9))
    client.stream.pause()
    world.advance(20)
    client.stream.go_on()
    world.kernel.pump()
    world.advance(20)
    assert client.seqs == [1, 2, 3]


def test_a_window_of_closed_streams_delivers_nothing() -> None:
    world = World()
    world.queue("q", claim_jitter_ms=20)
    client = Client(world, max=10)
    world.write("q", 1)
    client.stream.close()
    world.advance(20)
    ticket = world.claim_later()
    world.advance(20)
    assert [job.deliveries for job in ticket.result().jobs] == [1]


def test_the_end_of_the_queue_ends_its_streams(world: World) -> None:
    world.write("q", 1)
    client = Client(world)
    world.drop("q")
    assert [error.code for error in client.ended] == ["topic_not_found"]
    world.queue("q")
    world.write("q", 2)
    assert client.seqs == [1]


def test_streams_exist_only_on_queues(world: World) -> None:
    world.topic("log")
    with pytest.raises(NotAQueue):
        Client(world, "log")
    with pytest.raises(TopicNotFound):
        Client(world, "absent")


def test_leases_of_a_stream_are_released_by_a_restart(world: World) -> None:
    world.write("q", 1, 2)
    Client(world, max=1)
    world.claim()
    durable = world.state("q").config.leases_durable
    again = world.killed()
    assert again.counters() == ((1, 1, 0) if durable else (2, 0, 0))
    assert again.claim()[0].seq == 1
    world.snapshot()
    assert world.killed().claim()[0].seq == 1


def test_no_stream_ever_holds_more_than_its_room(world: World) -> None:
    clients = [Client(world, node=f"n{at}", max=at + 1, lease_ms=300) for at in range(3)]
    queue = queue_of(world.engine.state.topic("q"))
    for round in range(30):
        world.write("q", round, round)
        if round % 3 == 0:
            world.ack(*clients[2].seqs[-2:], node="n2")
        world.advance(97)
        for at, client in enumerate(clients):
            assert queue.held(client.stream.number) <= at + 1
