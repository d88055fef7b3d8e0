"""Queue endpoints: claim, ack, nack, extend (`http-api.md` section 19)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby

from topics.api.call import Call
from topics.engine.engine import Engine
from topics.engine.queue_pass import Claimed, ClaimedJob
from topics.engine.queues import Acked, Extended, Nacked
from topics.model.results import AckResult, ExtendResult, NackResult
from topics.wire.queue_requests import decode_ack, decode_claim, decode_extend, decode_nack, lease_text
from topics.wire.records import render_jobs
from topics.wire.replies import ack_performance, claim_reply, performance, struct_reply


class QueueEndpoints:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def claim(self, call: Call) -> None:
        request = decode_claim(call.body())
        self._engine.queues.queue(call.name)  # 404 and 409 come before the node is looked at
        request.check_node()
        ticket = self._engine.queues.claim(call.name, node=request.node, max=request.max, lease_ms=request.lease_ms)
        call.when(ticket, partial(self._claimed, call))

    @staticmethod
    def _claimed(call: Call, claimed: Claimed) -> None:
        body = claim_reply(
            call.name, rendered(claimed.jobs), ready=claimed.ready, performance=performance(call.elapsed_ms())
        )
        call.reply(200, body)

    def ack(self, call: Call) -> None:
        request = decode_ack(call.body())
        fences = request.check()
        ticket = self._engine.admit(
            call.name,
            partial(self._engine.queues.ack, call.name, node=request.node, seqs=request.seqs, fences=fences),
        )
        call.when(ticket, partial(self._acked, call))

    @staticmethod
    def _acked(call: Call, done: Acked) -> None:
        result = AckResult(
            topic=call.name, acked=done.acked, skipped=done.skipped, ready=done.ready, in_flight=done.in_flight
        )
        call.reply(200, struct_reply(result, ack_performance(call.elapsed_ms(), fsync_ms=done.sync_ms)))

    def nack(self, call: Call) -> None:
        request = decode_nack(call.body())
        fences = request.check()
        ticket = self._engine.queues.nack(
            call.name, node=request.node, seqs=request.seqs, fences=fences, delay_ms=request.delay_ms
        )
        call.when(ticket, partial(self._nacked, call))

    @staticmethod
    def _nacked(call: Call, done: Nacked) -> None:
        result = NackResult(
            topic=call.name, nacked=done.nacked, skipped=done.skipped, ready=done.ready, in_flight=done.in_flight
        )
        call.reply(200, struct_reply(result, performance(call.elapsed_ms())))

    def extend(self, call: Call) -> None:
        request = decode_extend(call.body())
        fences = request.check()
        ticket = self._engine.queues.extend(
            call.name, node=request.node, seqs=request.seqs, lease_ms=request.lease_ms, fences=fences
        )
        call.when(ticket, partial(self._extended, call))

    @staticmethod
    def _extended(call: Call, done: Extended) -> None:
        result = ExtendResult(topic=call.name, extended=done.extended, skipped=done.skipped, deadlines=done.deadlines)
        call.reply(200, struct_reply(result, performance(call.elapsed_ms())))


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
