"""Queue commands: the routes of queues, carried out by the engine in this process."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from topics.client import routes
from topics.client.routes import (
    JobQuery,
)
from topics.embedded.commands import carries_out
from topics.embedded.views import job_view
from topics.engine.engine import Engine
from topics.engine.queues.claim_pass import Claimed, Claimer
from topics.engine.queues.job_actions import Redrive
from topics.engine.ticket import Ticket, resolved
from topics.model.results import (
    AckResult,
    CancelResult,
    ClaimResult,
    ExtendResult,
    JobPage,
    MoveResult,
    NackResult,
    PauseResult,
    RedriveResult,
    RetryResult,
    WorkerPage,
)
from topics.wire.incoming.queue_requests import (
    AckRequest,
    ClaimRequest,
    ExtendRequest,
    MoveRequest,
    NackRequest,
    RedriveRequest,
    SeqsRequest,
)

if TYPE_CHECKING:
    from topics.embedded.database import Database


@carries_out(routes.CLAIM)
def _claim(db: Database, queue: str, asked: ClaimRequest) -> ClaimResult:
    begun: list[Claimer] = []

    def begin(engine: Engine) -> Ticket[Claimed]:
        begun.append(
            engine.queues.ask(queue, node=asked.node, max=asked.max, lease_ms=asked.lease_ms, wait_ms=asked.wait_ms)
        )
        return begun[0].ticket

    try:
        done = db.call(begin)
    finally:
        for claimer in begun:
            if not claimer.ticket.done:
                db.call(partial(_leave, claimer))
    jobs = [job_view(job) for job in done.jobs]
    return ClaimResult(topic=queue, claimed=jobs, count=len(jobs), ready=done.ready)


def _leave(claimer: Claimer, engine: Engine) -> Ticket[None]:
    engine.queues.waiting.leave(claimer)
    return resolved(None)


@carries_out(routes.ACK)
def _ack(db: Database, queue: str, asked: AckRequest) -> AckResult:
    fences, results = asked.check(), asked.result_texts()
    return db.call(
        lambda engine: engine.queues.ack(queue, node=asked.node, seqs=asked.seqs, fences=fences, results=results)
    ).result


@carries_out(routes.NACK)
def _nack(db: Database, queue: str, asked: NackRequest) -> NackResult:
    fences = asked.check()
    return db.call(
        lambda engine: engine.queues.nack(
            queue,
            node=asked.node,
            seqs=asked.seqs,
            fences=fences,
            delay_ms=asked.delay_ms,
            error=asked.error or "",
            final=asked.final,
        )
    )


@carries_out(routes.EXTEND)
def _extend(db: Database, queue: str, asked: ExtendRequest) -> ExtendResult:
    fences = asked.check()
    return db.call(
        lambda engine: engine.queues.extend(
            queue,
            node=asked.node,
            seqs=asked.seqs,
            fences=fences,
            lease_ms=asked.lease_ms,
            progress=asked.progress,
        )
    )


@carries_out(routes.JOBS)
def _jobs(db: Database, queue: str, asked: JobQuery) -> JobPage:
    after = int(asked.cursor or 0)
    return db.call(
        lambda engine: engine.queues.lists.jobs(
            queue, state=asked.state, tag=asked.tag, after=after, page_size=asked.page_size
        )
    )


@carries_out(routes.WORKERS)
def _workers(db: Database, queue: str, _: None) -> WorkerPage:
    return db.call(lambda engine: resolved(engine.queues.lists.workers(queue)))


@carries_out(routes.CANCEL)
def _cancel(db: Database, queue: str, asked: SeqsRequest) -> CancelResult:
    return db.call(lambda engine: engine.queues.actions.cancel(queue, asked.seqs))


@carries_out(routes.RETRY)
def _retry(db: Database, queue: str, asked: SeqsRequest) -> RetryResult:
    return db.call(lambda engine: engine.queues.actions.retry(queue, asked.seqs))


@carries_out(routes.MOVE)
def _move(db: Database, queue: str, asked: MoveRequest) -> MoveResult:
    return db.call(lambda engine: engine.queues.actions.move(queue, asked.seqs, asked.to))


@carries_out(routes.REDRIVE)
def _redrive(db: Database, topic: str, request: RedriveRequest) -> RedriveResult:
    asked = Redrive(
        to=request.to,
        match=request.tag_match(),
        error=request.error,
        from_ts=request.from_ts,
        to_ts=request.to_ts,
        from_seq=request.from_seq,
        limit=request.limit,
        rate=request.rate,
        delay_ms=request.delay_ms,
        dry_run=request.dry_run,
    )
    return db.call(lambda engine: engine.queues.actions.redrive(topic, asked))


@carries_out(routes.PAUSE)
def _pause(db: Database, queue: str, _: None) -> PauseResult:
    return db.call(lambda engine: engine.queues.set_paused(queue, True))


@carries_out(routes.RESUME)
def _resume(db: Database, queue: str, _: None) -> PauseResult:
    return db.call(lambda engine: engine.queues.set_paused(queue, False))
