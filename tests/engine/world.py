"""A whole engine on a simulated disk, spoken to in short sentences. Time moves only through `advance`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import msgspec

from topics.core.reading.walk import ReadOutcome, ReadRequest
from topics.core.topic import TopicLog
from topics.engine.engine import Engine
from topics.engine.queues.claim_pass import Claimed, ClaimedJob
from topics.engine.ticket import Ticket
from topics.errors import TopicsError
from topics.model.config import patch_from, resolve_config
from topics.model.names import parse_match
from topics.model.record import RecordIn, WriteBatch, build_batch
from topics.model.router import RouterDef
from topics.storage.fs import Fs
from topics.testing import SimClock, SimFs, SimHost
from topics.testing.driver import SimKernel
from topics.testing.simdisk import PowerCutFate

Row = tuple[int, Any]


def batch(
    *values: Any,
    tag: str | None = None,
    node: str | None = None,
    meta: Any = None,
    fields: dict[str, Any] | None = None,
) -> WriteBatch:
    """`fields` are those of a job, the same for every record."""
    given = msgspec.UNSET if meta is None else msgspec.Raw(msgspec.json.encode(meta))
    return build_batch(
        [
            RecordIn(msgspec.Raw(msgspec.json.encode(value)), tag=tag, node=node, meta=given, **fields or {})
            for value in values
        ]
    )


class JobList(list[ClaimedJob]):
    """A connection that takes all jobs of a work stream."""

    def jobs_leased(self, jobs: list[ClaimedJob]) -> None:
        self.extend(jobs)

    def grant(self, wanted_bytes: int, least_bytes: int) -> int:
        return wanted_bytes

    def claim_over(self, granted_bytes: int) -> None: ...

    def queue_gone(self, error: TopicsError) -> None: ...


class DeferredRouting:
    """Pressure that defers all router work, until `run`."""

    pressure = 0.0

    def __init__(self) -> None:
        self._later: list[Callable[[], None]] = []

    def defer_routing(self, source: TopicLog, routing: Callable[[], None]) -> bool:
        self._later.append(routing)
        return True

    def run(self) -> None:
        for routing in self._later:
            routing()


class World:
    def __init__(
        self,
        disk: SimFs | None = None,
        *,
        clock: SimClock | None = None,
        host: SimHost | None = None,
        fs: Fs | None = None,
        **settings: Any,
    ) -> None:
        self.disk = disk or SimFs()
        self.clock = clock or SimClock()
        self.host = host or SimHost()
        self.settings = settings
        self.kernel = SimKernel.open(fs or self.disk, clock=self.clock, host=self.host, **settings)

    @property
    def engine(self) -> Engine:
        return self.kernel.engine

    def call(self, ticket: Ticket[Any]) -> Any:
        self.kernel.pump()
        if not ticket.done:  # some calls wait for a checkpoint
            self.let_go()
        assert ticket.done, "a call was never answered"
        return ticket.result()

    # --- topics ---------------------------------------------------------------------------------------------------

    def topic(self, name: str, **config: Any) -> None:
        self.call(self.engine.put_topic(name, resolve_config(patch_from(config))))

    def queue(self, name: str, **config: Any) -> None:
        self.topic(name, type="queue", **config)

    def drop(self, name: str) -> Any:
        return self.call(self.engine.drop_topic(name))

    def write(self, name: str, *values: Any, **more: Any) -> Any:
        return self.call(self.engine.write(name, batch(*values, **more)))

    def delete(self, name: str, *, before: int | None = None, match: str | None = None) -> int:
        found = None if match is None else parse_match(match)
        deleted: int = self.call(self.engine.delete_records(name, before_seq=before, match=found)).deleted
        return deleted

    def outcome(self, name: str, from_seq: int = 0) -> ReadOutcome:
        done = self.call(self.engine.read(name, ReadRequest(from_seq=from_seq, limit=1000, budget_bytes=1 << 23)))
        outcome: ReadOutcome = done.outcome
        return outcome

    def rows(self, name: str) -> list[Row]:
        """Every live record as seq and data, past all gaps."""
        return [(record["$seq"], record["data"]) for record in self.records(name)]

    def records(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        at = 0
        while True:
            outcome = self.outcome(name, at)
            for run in outcome.runs:
                for record in run.records():
                    blob = msgspec.json.decode(record.blob)
                    shown = {"$seq": record.seq, "$ts": record.ts, "data": blob["d"], "meta": blob.get("m")}
                    shown |= {"$node": record.node, "$tag": record.tag}
                    found.append(shown)
            at = outcome.next_from_seq
            if outcome.caught_up:
                return found

    def data(self, name: str) -> list[Any]:
        return [data for _, data in self.rows(name)]

    def gaps(self, name: str, from_seq: int = 0) -> list[tuple[int, int, str]]:
        """What a reader from there on is told about losses."""
        found = []
        while True:
            outcome = self.outcome(name, from_seq)
            if outcome.tombstone is not None:
                found.append((outcome.tombstone.gap_from, outcome.tombstone.gap_to, outcome.tombstone.reason))
            from_seq = outcome.next_from_seq
            if outcome.caught_up:
                return found

    def state(self, name: str) -> Any:
        return self.call(self.engine.topic_state(name))

    # --- queues ---------------------------------------------------------------------------------------------------

    def claim(self, name: str = "q", node: str = "w", max: int = 1, lease_ms: int | None = None) -> list[Any]:
        claimed: Claimed = self.call(self.engine.queues.claim(name, node=node, max=max, lease_ms=lease_ms))
        return claimed.jobs

    def claim_later(self, name: str = "q", node: str = "w", max: int = 1, wait_ms: int = 0) -> Ticket[Claimed]:
        return self.engine.queues.claim(name, node=node, max=max, wait_ms=wait_ms)

    def seqs(self, *args: Any, **kwargs: Any) -> list[int]:
        return [job.seq for job in self.claim(*args, **kwargs)]

    def ack(self, *seqs: int, name: str = "q", node: str = "w", fences: list[int | None] | None = None) -> Any:
        return self.call(self.engine.queues.ack(name, node=node, seqs=list(seqs), fences=fences)).result

    def nack(
        self, *seqs: int, name: str = "q", node: str = "w", delay_ms: int | None = 0, fences: Any = None, **more: Any
    ) -> Any:
        queues = self.engine.queues
        return self.call(queues.nack(name, node=node, seqs=list(seqs), delay_ms=delay_ms, fences=fences, **more))

    def extend(self, *seqs: int, name: str = "q", node: str = "w", lease_ms: int = 30_000, **more: Any) -> Any:
        return self.call(self.engine.queues.extend(name, node=node, seqs=list(seqs), lease_ms=lease_ms, **more))

    def counters(self, name: str = "q") -> tuple[int, int, int]:
        queue = self.state(name).queue
        return queue.ready, queue.in_flight, queue.dead_lettered

    # --- routers --------------------------------------------------------------------------------------------------

    def router(self, name: str, source: str, dest: str, *, filter: str | None = None, **more: Any) -> Any:
        match = None if filter is None else parse_match(filter)
        return self.call(self.engine.routers.put(RouterDef(name=name, source=source, dest=dest, filter=match, **more)))

    def drop_router(self, name: str) -> bool:
        deleted: bool = self.call(self.engine.routers.delete(name))
        return deleted

    def forwarded(self, name: str) -> int:
        total: int = self.call(self.engine.routers.get(name)).forwarded_total
        return total

    @contextmanager
    def routers_deferred(self) -> Iterator[None]:
        """Pressure defers all router work, except what a reader of a destination asks for, until the block ends."""
        context, deferred = self.engine.context, DeferredRouting()
        before = context.pressure
        self.engine.attach_delivery(deferred)
        try:
            yield
        finally:
            self.engine.attach_delivery(before)
            deferred.run()
            self.kernel.pump()

    # --- time and trouble -----------------------------------------------------------------------------------------

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.kernel.tick()

    def rest(self) -> None:
        """Everything that needs no more time happens."""
        self.kernel.tick()

    def checkpoint(self) -> None:
        self.let_go()
        self.kernel.checkpoint()

    def snapshot(self) -> None:
        self.let_go()
        self.kernel.snapshot()

    def begin_snapshot(self) -> None:
        """A snapshot stands still behind its barrier until `go_on` or `let_go`; clients act meanwhile."""
        self.kernel.driver.hold_background = True
        self.kernel.kernel.snapshotter.run()
        self.kernel.pump()

    def go_on(self, jobs: int = 1) -> None:
        """So many of the jobs that are held, each with all that follows at once."""
        for _ in range(jobs):
            self.kernel.driver.step_background()
            self.kernel.pump()

    def let_go(self) -> None:
        self.kernel.driver.hold_background = False
        self.kernel.pump()

    def killed(self, **settings: Any) -> World:
        """The process dies; the next one starts on what it wrote."""
        disk = self.disk.clone()
        disk.kill()
        return World(disk.reboot(), clock=self.clock, host=self.host, **{**self.settings, **settings})

    def cut(self, seed: int = 0, pattern: str | PowerCutFate = "lose_all", **settings: Any) -> World:
        """Power goes: what was not synced is at the disk's mercy."""
        disk = self.disk.clone()
        disk.power_cut(Random(seed), pattern)
        host = SimHost("boot-after")
        return World(disk.reboot(), clock=self.clock, host=host, **{**self.settings, **settings})

    def stopped(self, **settings: Any) -> World:
        """A clean stop and start."""
        self.let_go()
        self.kernel.close()
        return World(self.disk, clock=self.clock, host=self.host, **{**self.settings, **settings})
