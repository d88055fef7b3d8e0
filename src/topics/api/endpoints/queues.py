"""Queue endpoints: claim, ack, nack, extend (`docs/spec/http-api.md#sec-19`).

Always holds: nothing large is rendered on the loop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import get_args

from topics import limits
from topics.api.app import RequestCall
from topics.api.live.batches import OffLoop
from topics.engine.engine import Engine
from topics.engine.queues.claim_pass import Claimed, ClaimedJob
from topics.engine.queues.job_actions import Redrive
from topics.engine.queues.queues import Acked
from topics.errors import InvalidRequest
from topics.model.results import JobState, lease_text
from topics.model.run import BODY_HEAD
from topics.wire.incoming.queue_requests import (
    ClaimRequest,
    decode_ack,
    decode_claim,
    decode_extend,
    decode_move,
    decode_nack,
    decode_redrive,
    decode_seqs,
)
from topics.wire.incoming.request_head import int_param
from topics.wire.outgoing.records import render_jobs
from topics.wire.outgoing.replies import ack_performance, claim_reply, performance


class QueueEndpoints:
    def __init__(self, engine: Engine, *, off_loop: OffLoop) -> None:
        self._engine = engine
        self._off_loop = off_loop

    def claim(self, call: RequestCall) -> None:
        request = call.take(decode_claim)
        queue = self._engine.queues.queue(call.name)  # 404 and 409 come before the node is looked at
        request.check_node()
        mean_bytes = queue.bytes // queue.count if queue.count else 0
        call.when_budget(partial(self._claim, call, request), size_bytes=mean_bytes * min(request.max, queue.count))

    def _claim(self, call: RequestCall, request: ClaimRequest) -> None:
        queues = self._engine.queues
        claimer = queues.ask(
            call.name, node=request.node, max=request.max, lease_ms=request.lease_ms, wait_ms=request.wait_ms
        )
        if not claimer.ticket.done:
            call.responder.on_close(partial(queues.waiting.leave, claimer))
        call.when(claimer.ticket, partial(self._claimed, call))

    def _claimed(self, call: RequestCall, claimed: Claimed) -> None:
        size_bytes = sum(map(_blob_bytes, claimed.jobs))
        if size_bytes > limits.RENDER_INLINE_BYTES_MAX:  # `docs/spec/delivery.md#sec-11`
            call.responder.expect(size_bytes)
            self._off_loop(partial(self._claim_body, call, claimed), call.rendered)
        else:
            call.reply(200, self._claim_body(call, claimed))

    @staticmethod
    def _claim_body(call: RequestCall, claimed: Claimed) -> bytes:
        return claim_reply(
            call.name, rendered(claimed.jobs), ready=claimed.ready, performance=performance(call.elapsed_ms())
        )

    def ack(self, call: RequestCall) -> None:
        request = call.take(decode_ack)
        fences = request.check()
        ticket = self._engine.admit(
            call.name,
            partial(
                self._engine.queues.ack,
                call.name,
                node=request.node,
                seqs=request.seqs,
                fences=fences,
                results=request.result_texts(),
            ),
        )
        call.when(ticket, partial(self._acked, call))

    @staticmethod
    def _acked(call: RequestCall, done: Acked) -> None:
        call.answer(done.result, ack_performance(call.elapsed_ms(), fsync_ms=done.sync_ms))

    def nack(self, call: RequestCall) -> None:
        request = call.take(decode_nack)
        fences = request.check()
        ticket = self._engine.queues.nack(
            call.name,
            node=request.node,
            seqs=request.seqs,
            fences=fences,
            delay_ms=request.delay_ms,
            error=request.error or "",
            final=request.final,
        )
        call.when(ticket, call.answer)

    def extend(self, call: RequestCall) -> None:
        request = call.take(decode_extend)
        fences = request.check()
        ticket = self._engine.queues.extend(
            call.name,
            node=request.node,
            seqs=request.seqs,
            lease_ms=request.lease_ms,
            fences=fences,
            progress=request.progress,
        )
        call.when(ticket, call.answer)


class JobEndpoints:
    """Looking at jobs and acting on them by seq."""

    def __init__(self, engine: Engine) -> None:
        self._queues = engine.queues

    def list_jobs(self, call: RequestCall) -> None:
        query = call.query()
        asked, cursor = query.get("state"), query.get("cursor") or "0"
        state: JobState | None = next((known for known in get_args(JobState) if known == asked), None)
        if asked and state is None:
            raise InvalidRequest(f"state must be ready, delayed or in_flight, not {asked!r}")
        if not (cursor.isascii() and cursor.isdigit()):
            raise InvalidRequest("cursor must be the next_cursor of a page")
        page_size = int_param(query, "page_size", clamp=limits.PAGE_SIZE)
        ticket = self._queues.lists.jobs(
            call.name,
            state=state,
            tag=query.get("tag"),
            after=int(cursor),
            page_size=page_size,
        )
        call.when(ticket, call.answer)

    def list_workers(self, call: RequestCall) -> None:
        call.answer(self._queues.lists.workers(call.name))

    def cancel_jobs(self, call: RequestCall) -> None:
        call.when(self._queues.actions.cancel(call.name, call.take(decode_seqs).seqs), call.answer)

    def retry_jobs(self, call: RequestCall) -> None:
        call.when(self._queues.actions.retry(call.name, call.take(decode_seqs).seqs), call.answer)

    def move_jobs(self, call: RequestCall) -> None:
        request = call.take(decode_move)
        call.when(self._queues.actions.move(call.name, request.seqs, request.to), call.answer)

    def redrive(self, call: RequestCall) -> None:
        request = call.take(decode_redrive)
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
        key = call.key
        permits = (lambda _: True) if key is None else key.permits_name
        call.when(self._queues.actions.redrive(call.name, asked, permits), call.answer)

    def pause_queue(self, call: RequestCall) -> None:
        call.when(self._queues.set_paused(call.name, True), call.answer)

    def resume_queue(self, call: RequestCall) -> None:
        call.when(self._queues.set_paused(call.name, False), call.answer)


def rendered(jobs: Sequence[ClaimedJob]) -> list[bytes]:
    """Entries of `claimed`; jobs of one run are rendered together."""
    bodies: list[bytes] = []
    for _, group in groupby(jobs, key=lambda job: id(job.run)):
        some = list(group)
        bodies += render_jobs(
            some[0].run,
            [job.at for job in some],
            lease_ids=[lease_text(job.lease_id) for job in some],
            deadlines=[job.deadline for job in some],
            deliveries=[job.deliveries for job in some],
        )
    return bodies


def _blob_bytes(job: ClaimedJob) -> int:
    size: int = BODY_HEAD.unpack_from(job.run.buf, job.run.body_offs[job.at])[4]
    return size
