"""RouterEvidence: what log frames must say about routers, so that a start can make their copies again
(`docs/spec/storage.md#sec-9-6`).

    of a source   its Delete and EvictWatermark frames tell how far each router had come: `routed`
    of a dest     a direct write has a pin in front: the cursors of the routers into it after that write

Between the decision of such a frame and its apply, the routers of that source stand still: a record that the frame says
was not copied yet must not be copied meanwhile. Always holds: a source that nobody holds has no waiters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from topics.core.state import State
from topics.core.topic import TopicLog
from topics.engine.ticket import Ticket, guarded
from topics.model.ops import ConfigUpdate, Delete, Evict, HeadMark, Op, Pin, RouterMark


def pin_of(mark: RouterMark) -> Pin:
    return Pin(router=mark.name, cursor=mark.cursor, forwarded_total=mark.forwarded_total, dest_base=mark.dest_base)


class RouterEvidence:
    def __init__(self, state: State) -> None:
        self._state = state
        self._held: Counter[int] = Counter()
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    # --- frames ---------------------------------------------------------------------------------------------------

    def with_evidence(self, topic: TopicLog, op: Delete) -> Delete:
        """The delete with what recovery needs to know. A delete in a destination says how many seqs there were."""
        routed = self._routed(topic)
        if topic.id in self._state.fed and op.bound_head is None:
            op = msgspec.structs.replace(op, bound_head=topic.reserved_head + 1)
        return msgspec.structs.replace(op, routed=routed) if routed else op

    def evict_with_evidence(self, topic: TopicLog, op: Evict) -> Evict:
        routed = self._routed(topic)
        return msgspec.structs.replace(op, routed=routed) if routed else op

    def all_with_evidence(self, topic: TopicLog, ops: Sequence[Op]) -> list[Op]:
        """Frames of a config change. A pin says which copies a destination took under the old config."""
        with_evidence: list[Op] = []
        if topic.id in self._state.fed and any(isinstance(op, ConfigUpdate) for op in ops):
            for pin in self.pins(topic, last_seq=topic.reserved_head):
                with_evidence.append(HeadMark(topic_id=topic.id, ceiling=topic.ceiling, pin=pin))
        return with_evidence + [self._with_evidence(topic, op) for op in ops]

    def _with_evidence(self, topic: TopicLog, op: Op) -> Op:
        if isinstance(op, Delete):
            return self.with_evidence(topic, op)
        return self.evict_with_evidence(topic, op) if isinstance(op, Evict) else op

    def pins(self, topic: TopicLog, *, last_seq: int) -> list[Pin]:
        """The cursors of the routers into a topic, after a direct write that ends at `last_seq`."""
        routers = self._state.routers.into(topic.id)
        return [pin_of(router.reserved_mark(dest_head=last_seq)) for router in routers]

    def _routed(self, topic: TopicLog) -> tuple[RouterMark, ...]:
        marks = []
        for router in self._state.routers.from_source(topic.id):
            dest = self._state.by_id.get(router.dest_id)
            if dest is not None:
                marks.append(router.evidence_mark(dest_head=dest.reserved_head))
        return tuple(marks)

    # --- standing still -------------------------------------------------------------------------------------------

    def hold(self, topic: TopicLog) -> None:
        """The routers of this source stand still until `release`."""
        self._held[topic.id] += 1

    def release(self, topic: TopicLog) -> None:
        self._held[topic.id] -= 1
        if not self._held[topic.id]:
            del self._held[topic.id]
            for step in self._waiting.pop(topic.id, ()):
                guarded(step)

    def hold_until(self, topic: TopicLog, ticket: Ticket[Any]) -> None:
        """Hold while a submitted frame is not applied; a topic that is no source needs nothing."""
        if not ticket.done and self._state.routers.from_source(topic.id):
            self.hold(topic)
            ticket.then(lambda _: self.release(topic))

    def is_held(self, topic_id: int) -> bool:
        return topic_id in self._held

    def when_free(self, topic_id: int, step: Callable[[], None]) -> None:
        self._waiting.setdefault(topic_id, []).append(step)
