"""Dumps: everything that a refused call must leave alone, as a value that can be compared."""

from __future__ import annotations

from typing import Any

from tests.api.server import LiveServer

from topics.core.queue.queue import QueueState
from topics.core.state import State


def everything(server: LiveServer) -> dict[str, Any]:
    """Topics, leases and routers, and how many frames were logged for clients."""
    return server.on_loop(lambda: _dump(server))  # type: ignore[no-any-return]


def _dump(server: LiveServer) -> dict[str, Any]:
    frames = sum(group.stats.client_frames for group in server.kernel.store.groups)
    return {**dump(server.kernel.engine.state), "frames": frames}


def dump(state: State) -> dict[str, Any]:
    topics = {
        name: (
            topic.id,
            topic.config,
            (topic.head, topic.reserved_head, topic.count, topic.bytes),
            (topic.earliest_seq, topic.evict_floor),
            (topic.staged_count, topic.staged_bytes),
            None if topic.queue is None else _leases(topic.queue),
        )
        for name, topic in state.topics.items()
    }
    routers = {
        router.name: (router.definition, router.rev, router.cursor, router.reserved_cursor, router.forwarded_total)
        for router in state.routers
    }
    return {"topics": topics, "routers": routers, "next_topic_id": state.next_topic_id}


def _leases(queue: QueueState) -> tuple[Any, ...]:
    jobs = {
        job.seq: (job.state, job.node, job.lease_id, job.due_at, job.deliveries, job.stream)
        for job in queue.jobs.values()
    }
    counts = (queue.in_flight, queue.delayed, queue.moving, queue.dead_lettered)
    return jobs, counts, queue.cursor, queue.next_lease_id
