"""Single reads: one record by its seq, and the newest record, of all or of a tag (`docs/spec/readers.md#sec-4`).

A record is found by a read of one record from just before it. So it is seen here exactly if a reader would see it, and
what a reader would be told of it says why it is not there."""

from __future__ import annotations

from topics.core.lineage import is_foreign
from topics.core.reading.newest import NewestSearch
from topics.core.reading.request import ReadRequest
from topics.core.slots.extent import index_of
from topics.core.slots.sealed_slots import Sealed
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.floor_log import FloorLog
from topics.engine.reading.reads import ReadDone, Reads
from topics.engine.routers.forwarding import Forwarding
from topics.engine.ticket import Ticket, chain, resolved
from topics.errors import InvalidRequest, RecordNotFound
from topics.model.names import TagMatch
from topics.model.position import Position


class SingleReads:
    def __init__(self, context: Context, floor_log: FloorLog, forwarding: Forwarding, reads: Reads) -> None:
        self._ctx = context
        self._floor_log = floor_log
        self._forwarding = forwarding
        self._reads = reads

    def get(self, name: str, position: Position) -> Ticket[ReadDone]:
        """A read that has exactly this record. Fails with RecordNotFound."""
        topic = self._ctx.state.topic(name)
        seq, epoch = position
        if not seq:
            raise InvalidRequest("a record's seq is 1 or more")

        def found(done: ReadDone) -> Ticket[ReadDone]:
            if epoch is not None and seq <= topic.head and is_foreign(topic, seq, epoch):
                raise RecordNotFound.of(name, seq, "was of another topic of this name", why="lost", reason="recreated")
            return resolved(_checked(name, seq, done))

        return chain(self._read_at(topic, seq), found)

    def newest(self, name: str, match: TagMatch | None) -> Ticket[ReadDone]:
        """A read that has exactly the newest live record that matches. Fails with RecordNotFound."""
        topic = self._ctx.state.topic(name)
        feeding = self._forwarding.bring_up_to_date(topic) or resolved(None)
        return chain(feeding, lambda _: self._search(topic, NewestSearch(match)))

    def _search(self, topic: TopicLog, search: NewestSearch) -> Ticket[ReadDone]:
        self._ctx.check_exists(topic)
        return chain(self._floor_log.ensure_logged(topic), lambda _: self._look(topic, search))

    def _look(self, topic: TopicLog, search: NewestSearch) -> Ticket[ReadDone]:
        self._ctx.check_exists(topic)
        found = search.seq(topic)
        if isinstance(found, Sealed):
            loaded = self._ctx.files.fetch(topic, index_of(found, found.first_seq))
            return chain(loaded, lambda _: self._look(topic, search))
        if not found:
            told = f"topic {topic.name!r} has no live record that matches"
            raise RecordNotFound(told, detail={"topic": topic.name})
        return chain(self._read_at(topic, found), lambda done: self._shown(topic, search, found, done))

    def _shown(self, topic: TopicLog, search: NewestSearch, seq: int, done: ReadDone) -> Ticket[ReadDone]:
        """Unless it was removed while it was being read: then another one is the newest."""
        return resolved(done) if _seq_of(done) == seq else self._search(topic, search)

    def _read_at(self, topic: TopicLog, seq: int) -> Ticket[ReadDone]:
        return self._reads.read(topic, ReadRequest(from_seq=seq - 1, limit=1, in_turn=True))


def _seq_of(done: ReadDone) -> int:
    return done.outcome.runs[0].seq(0) if done.outcome.records else 0


def _checked(name: str, seq: int, done: ReadDone) -> ReadDone:
    """Raises RecordNotFound unless the read has the record."""
    outcome = done.outcome
    gap = outcome.tombstone
    if seq > outcome.head_seq:
        raise RecordNotFound.of(name, seq, f"does not exist yet; the head is {outcome.head_seq}", why="not_yet")
    if _seq_of(done) == seq:
        return done
    if gap is not None and gap.gap_from <= seq <= gap.gap_to:
        raise RecordNotFound.of(name, seq, f"is lost ({gap.reason})", why="lost", reason=gap.reason)
    raise RecordNotFound.of(name, seq, "was deleted", why="deleted")
