"""FloorLog: floors are logged before anyone may see them (`docs/spec/semantics.md#sec-6-4`).

TTL and byte caps move no floor before that is logged: every observer of a topic (read, state, list, delete, claim)
calls `ensure_logged` first. Always holds when its ticket resolves: nothing was due at the time of the call, or what was
due is synced and applied.

A count cap moves its floor with the append, and the log has the reason. Whoever shows such a floor holds the answer
back until a crash cannot undo it (`shown`, `make_durable`); writes never wait for it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from topics.core.apply import apply
from topics.core.retention.rules import due, floors_op, unlogged
from topics.core.slots.extent import index_of
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.ticket import Ticket, chain, either_way, failed, gathered, resolved
from topics.errors import TopicsError
from topics.model.ops import Evict
from topics.model.submission import Submission

INDEX_WAIT_MS = 1000
"""How long a caller that can do without a cold segment's index waits for it."""
SKIP_WAIT_MS = 30_000
"""After such a wait has timed out, all waits are skipped for this long: the cold store does not answer."""


class FloorLog:
    def __init__(self, context: Context) -> None:
        self._ctx = context
        self._pending: dict[int, Ticket[None]] = {}
        self._being_logged: dict[int, tuple[int, Ticket[None]]] = {}  # by topic id; with the highest lost seq logged
        self._waits: list[tuple[int, Ticket[None]]] = []  # until when, on the running clock
        self._skip_wait_until_ms = 0

    def tick(self) -> None:
        """End the waits that timed out: a cold store that does not answer must not hold up a mere count."""
        now = self._ctx.clock.running_ms()
        over = [wait for until_ms, wait in self._waits if until_ms <= now and not wait.done]
        self._waits = [(until_ms, wait) for until_ms, wait in self._waits if until_ms > now and not wait.done]
        if over:
            self._skip_wait_until_ms = now + SKIP_WAIT_MS
        for wait in over:
            wait.resolve(None)

    def is_logged(self, topic: TopicLog) -> bool:
        """Nothing is due and nothing is being logged. What is due in an ephemeral topic is applied here, without a
        log."""
        config = topic.config
        if topic.id in self._pending:
            return False
        evict = self._due(topic) if config.ttl_ms or config.cap_bytes else None
        if evict is None:
            return True
        if config.is_ephemeral:
            self._apply(topic, evict)
            return True
        return False

    def ensure_logged(self, topic: TopicLog) -> Ticket[None]:
        """Log what is due. A floor that cannot be logged fails the ticket, and with it the observer."""
        if self.is_logged(topic):
            return resolved(None)
        pending = self._pending.get(topic.id)
        if pending is not None:
            return pending
        evict = self._due(topic)
        assert evict is not None
        return self._log(topic, evict)

    def ensure_logged_exactly(self, topic: TopicLog) -> Ticket[None]:
        """As `ensure_logged`, and loads the indexes of cold segments that have to tell what is due. One that cannot be
        loaded in time is left out: a caller that only counts goes on with what is known."""
        ticket = self.ensure_logged(topic)
        if ticket.done and not topic.awaiting:
            return ticket
        return chain(ticket, lambda _: self._load_awaited(topic, set()))

    def _load_awaited(self, topic: TopicLog, asked: set[int]) -> Ticket[None]:
        waiting = [first for first in topic.awaiting if first not in asked]
        asked.update(waiting)
        if not waiting:
            return resolved(None)
        again = chain(self.load_indexes(topic, waiting), lambda _: self.ensure_logged(topic))
        return chain(again, lambda _: self._load_awaited(topic, asked))

    def load_indexes(self, topic: TopicLog, firsts: Iterable[int]) -> Ticket[None]:
        """Load the indexes of these cold segments, as far as that works and does not take long."""
        blocks = [block for first in firsts if (block := topic.sealed.by_first_seq(first)) is not None]
        fetch = self._ctx.files.fetch
        return self._with_timeout(
            gathered([either_way(fetch(topic, index_of(block, block.first_seq))) for block in blocks])
        )

    def _with_timeout(self, loaded: Ticket[None]) -> Ticket[None]:
        clock = self._ctx.clock
        now = clock.running_ms()
        if loaded.done or now < self._skip_wait_until_ms:
            return resolved(None)
        wait: Ticket[None] = Ticket()
        self._waits.append((now + INDEX_WAIT_MS, wait))
        self._ctx.wake_at(clock.now_ms() + INDEX_WAIT_MS)
        loaded.then(lambda _: None if wait.done else wait.resolve(None), wait.abandon)
        return wait

    def _due(self, topic: TopicLog) -> Evict | None:
        return due(topic, self._ctx.clock.now_ms())

    # --- floors that count caps moved -----------------------------------------------------------------------------

    def is_durable(self, topic: TopicLog) -> bool:
        """Does a start after any crash find the floors where they are now? Floors that were logged: yes. Those of a
        count cap follow from the log too, if writes are synced before they are seen, the records that pushed others out
        have frames (copies have none), and no cold segment must be asked how many records live below the floor."""
        if topic.floors.lost <= topic.logged_lost or topic.config.is_ephemeral:
            return True
        return topic.config.is_fsync and topic.id not in self._ctx.fed and not _lies_in_cold(topic)

    def make_durable(self, topic: TopicLog) -> Ticket[None]:
        """Log the floors as they are now, unless that is under way already."""
        lost = topic.floors.lost
        known = self._being_logged.get(topic.id)
        if known is not None and known[0] >= lost:
            return known[1]
        ticket = self.log_floors(topic)
        if not ticket.done:
            self._being_logged[topic.id] = lost, ticket
            ticket.then(lambda done: self._floors_logged(topic.id, done))
        return ticket

    def _floors_logged(self, topic_id: int, done: Ticket[None]) -> None:
        if topic_id in self._being_logged and self._being_logged[topic_id][1] is done:
            del self._being_logged[topic_id]

    def shown(self, topic: TopicLog, earliest_seq: int) -> Ticket[int]:
        """The `earliest_seq` that an answer made now may show, once it is logged; a lower one if it cannot be."""
        if self.is_durable(topic):
            return resolved(earliest_seq)
        ticket: Ticket[int] = Ticket()
        self.make_durable(topic).then(
            lambda done: ticket.resolve(earliest_seq if done.error is None else self.durable_earliest(topic))
        )
        return ticket

    def durable_earliest(self, topic: TopicLog) -> int:
        """The `earliest_seq` that no crash can undo, for a caller that cannot wait."""
        earliest = topic.earliest_seq
        return earliest if self.is_durable(topic) else min(earliest, topic.logged_lost + 1)

    def ensure_shown_logged(self, topics: Iterable[TopicLog]) -> Ticket[None]:
        """`ensure_logged` for each of the topics, then `log_all`; the first failure of the former fails it."""
        topics = list(topics)
        return chain(gathered(list(map(self.ensure_logged, topics))), lambda _: self.log_all(topics))

    @staticmethod
    def unlogged_floors(topics: Iterable[TopicLog]) -> list[Evict]:
        """The floors that a checkpoint must log before it writes these topics: it leaves out what count caps
        evicted."""
        capped = (topic for topic in topics if topic.config.cap_records and not topic.config.is_ephemeral)
        return [floors for floors in map(unlogged, capped) if floors is not None]

    def log_all(self, topics: Iterable[TopicLog]) -> Ticket[None]:
        """Log the floors of this moment as far as that is possible; `sure_earliest` has them then."""
        return gathered([either_way(self.make_durable(topic)) for topic in topics if not self.is_durable(topic)])

    def log_soon(self, topics: Iterable[TopicLog]) -> Ticket[None]:
        """As `ensure_logged_if_possible`, but with a timeout."""
        return self._with_timeout(self.ensure_logged_if_possible(topics))

    def ensure_logged_if_possible(self, topics: Iterable[TopicLog]) -> Ticket[None]:
        """For callers that answer in any case: a floor that cannot be logged stays where it was."""
        return gathered([either_way(ticket) for ticket in map(self._try_to_log, topics) if not ticket.done])

    def _try_to_log(self, topic: TopicLog) -> Ticket[None]:
        try:
            return self.ensure_logged(topic)
        except TopicsError as error:
            return failed(error)

    def log_floors(self, topic: TopicLog) -> Ticket[None]:
        """Log the floors as they are: a count cap moved them, and a replay must find the reason before what follows."""
        evict = floors_op(topic)
        try:
            return self._ctx.log(
                topic.id, [evict], finish=lambda _: self._apply(topic, evict), barrier=False, internal=True
            )
        except TopicsError as error:
            return failed(error)

    def _log(self, topic: TopicLog, evict: Evict) -> Ticket[None]:
        ctx = self._ctx
        evict = ctx.evidence.evict_with_evidence(topic, evict)
        ticket = ctx.log(topic.id, [evict], finish=partial(self._finish, topic, evict), internal=True)
        self._pending[topic.id] = ticket
        ctx.evidence.hold_until(topic, ticket)
        ticket.then(lambda _: self._over(topic))
        return ticket

    def _finish(self, topic: TopicLog, evict: Evict, _sub: Submission) -> None:
        self._over(topic)
        self._apply(topic, evict)

    def _over(self, topic: TopicLog) -> None:
        self._pending.pop(topic.id, None)

    def _apply(self, topic: TopicLog, evict: Evict) -> None:
        effect = apply(self._ctx.state, evict)
        if effect.removal is not None:
            self._ctx.removed(topic, effect)


def _lies_in_cold(topic: TopicLog) -> bool:
    """Whether the floor lies in a cold segment that has deletes: only its index tells how many live ones are below."""
    segment = topic.sealed.find(topic.floors.lost) if len(topic.sealed) else None
    return segment is not None and segment.tier == "cold" and segment.deleted != 0
