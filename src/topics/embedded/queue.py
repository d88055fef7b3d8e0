"""Queue and Router: handles of the embedded library, beside `Topic`. Cheap, stateless, good for any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from topics.embedded.topic import Topic
from topics.embedded.views import job_view
from topics.model.config import TopicConfig
from topics.model.doors import Match, Seqs, listed
from topics.model.names import check_router_name
from topics.model.results import AckResult, ClaimResult, ExtendResult, Job, NackResult, RouterState
from topics.model.router import Guarantee, RouterDef
from topics.wire.incoming.requests import (
    AckRequest,
    ClaimRequest,
    ExtendRequest,
    NackRequest,
    PutRouterRequest,
    checked,
    predicate,
)

if TYPE_CHECKING:
    from topics.client.jobs.work import Work
    from topics.client.jobs.worker import Handler, Worker
    from topics.embedded.database import Database


class Queue(Topic):
    """A topic of type `queue`. Its first append creates it as one; `configure` does so by itself."""

    def configure(self, **config: Any) -> TopicConfig:
        return super().configure(**{"type": "queue", **config})

    def claim(self, node: str, *, max: int = 1, lease_ms: int | None = None) -> ClaimResult:
        """Lease up to `max` jobs to a node; none is an empty list."""
        asked = checked(ClaimRequest, node=node, max=max, lease_ms=lease_ms)
        done = self._db.call(
            lambda engine: engine.queues.claim(self.name, node=node, max=asked.max, lease_ms=asked.lease_ms)
        )
        jobs = [job_view(job) for job in done.jobs]
        return ClaimResult(topic=self.name, claimed=jobs, count=len(jobs), ready=done.ready)

    def ack(self, jobs: Seqs, *, node: str) -> AckResult:
        """Done: the jobs are deleted."""
        asked = checked(AckRequest, node=node, **_seqs_and_tokens(jobs))
        fences = asked.check()
        done = self._db.call(lambda engine: engine.queues.ack(self.name, node=node, seqs=asked.seqs, fences=fences))
        return done.result

    def nack(self, jobs: Seqs, *, node: str, delay_ms: int = 0) -> NackResult:
        """Not done: somebody may claim them again, at once or after a delay."""
        asked = checked(NackRequest, node=node, delay_ms=delay_ms, **_seqs_and_tokens(jobs))
        fences = asked.check()
        return self._db.call(
            lambda engine: engine.queues.nack(
                self.name, node=node, seqs=asked.seqs, fences=fences, delay_ms=asked.delay_ms
            )
        )

    def extend(self, jobs: Seqs, *, node: str, lease_ms: int) -> ExtendResult:
        """Hold the jobs until `lease_ms` from now."""
        asked = checked(ExtendRequest, node=node, lease_ms=lease_ms, **_seqs_and_tokens(jobs))
        fences = asked.check()
        return self._db.call(
            lambda engine: engine.queues.extend(
                self.name, node=node, seqs=asked.seqs, fences=fences, lease_ms=asked.lease_ms
            )
        )

    def work(
        self,
        node: str | None = None,
        *,
        max: int = 1,
        lease_ms: int | None = None,
        until_empty: bool = False,
        stop: threading.Event | None = None,
    ) -> Work:
        """Jobs one by one, each acked when the loop comes back for the next; their leases are kept meanwhile.

        `max` jobs are claimed at a time. Ends when `stop` is set or, with `until_empty`, when nothing is ready."""
        from topics.client.jobs.work import Work

        return Work(self, node, max=max, lease_ms=lease_ms, until_empty=until_empty, stop=stop)

    def worker(self, **options: Any) -> Callable[[Handler], Worker]:
        """`@queue.worker(concurrency=8)` makes a function the worker of this queue; `run()` it. The options are
        those of `WorkerOptions`."""
        from topics.client.jobs.worker import Worker, WorkerOptions

        return lambda handler: Worker(self, handler, WorkerOptions(**options))


def _seqs_and_tokens(jobs: Seqs) -> dict[str, list[Any]]:
    given = listed(jobs)
    return {
        "seqs": [job.seq if isinstance(job, Job) else job for job in given],
        "lease_ids": [job.lease_id if isinstance(job, Job) else "" for job in given],
    }


class Router:
    """A router by name: copies what is written to one topic into another."""

    def __init__(self, database: Database, name: str) -> None:
        self._db = database
        self.name = name

    def __repr__(self) -> str:
        return f"Router({self.name!r})"

    def put(
        self,
        source: str,
        dest: str,
        *,
        preserve_node: bool = True,
        preserve_tag: bool = True,
        create_dest: bool = True,
        filter: Match = None,
        allow_cycle: bool = False,
        guarantee: Guarantee = "at_least_once",
    ) -> RouterState:
        """Copy what is committed to `source` from now on into `dest`. All but the ends of a router may be replaced."""
        asked = checked(
            PutRouterRequest,
            source=source,
            dest=dest,
            preserve_node=preserve_node,
            preserve_tag=preserve_tag,
            create_dest=create_dest,
            filter=predicate(filter),
            allow_cycle=allow_cycle,
            guarantee=guarantee,
        )
        check_router_name(self.name)
        definition = asked.definition(self.name)
        done = self._db.call(lambda engine: engine.routers.put(definition))
        return _state_of(done.definition, created=done.created)

    def get(self) -> RouterState:
        """Settings and progress."""
        shown = self._db.call(lambda engine: engine.routers.get(self.name))
        return _state_of(shown.definition, forwarded_total=shown.forwarded_total)

    def delete(self) -> bool:
        """Forwarding stops; the copies stay. False if there was no such router."""
        return self._db.call(lambda engine: engine.routers.delete(self.name))


def _state_of(definition: RouterDef, **more: Any) -> RouterState:
    return RouterState(**definition.to_json(), **more)
