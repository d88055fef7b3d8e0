"""Latest: the newest live record of each tag, a page in the byte order of tags (`docs/spec/readers.md#sec-7`).

The tags and seqs come from the tag indexes, then only the records of the page are read. Always holds: a page is exact
for its position; if a record of it is removed while it is being read, the page is looked for again. Files are read on
pools, and a search over many segments lets others in between."""

from __future__ import annotations

from typing import NamedTuple

from topics.core.lineage import epoch_of
from topics.core.retention.superseded import removes_tag
from topics.core.slots.extent import index_of
from topics.core.slots.tag_walk import TagWalk
from topics.core.topic import TopicLog
from topics.engine.context import Context
from topics.engine.floor_log import FloorLog
from topics.engine.reading.reads import Payload, PayloadSearch
from topics.engine.routers.forwarding import Forwarding
from topics.engine.ticket import Ticket, chain, resolved
from topics.errors import CorruptSegment, InvalidRequest, StorageIo
from topics.model.run import RecordRun

STEPS = 4  # of a search in one turn
ATTEMPTS_MAX = 100  # a page that loses a record so often is being compacted faster than it can be read


class LatestRequest(NamedTuple):
    prefix: bytes = b""
    after: bytes | None = None
    limit: int = 256
    budget_bytes: int = 1 << 20


class LatestPage(NamedTuple):
    """`runs` have one record each; `next` is the last tag of the page if others follow."""

    runs: list[RecordRun]
    next: str | None
    head_seq: int
    epoch: int
    size_bytes: int


class LatestReads:
    def __init__(self, context: Context, floor_log: FloorLog, forwarding: Forwarding) -> None:
        self._ctx = context
        self._floor_log = floor_log
        self._forwarding = forwarding

    def page(self, name: str, request: LatestRequest) -> Ticket[LatestPage]:
        topic = self._ctx.state.topic(name)
        if topic.config.is_queue:
            raise InvalidRequest(f"{name!r} is a queue: the latest of each tag is a table of log topics")
        feeding = self._forwarding.bring_up_to_date(topic) or resolved(None)
        return chain(feeding, lambda _: self._search(topic, request, 0))

    def _search(self, topic: TopicLog, request: LatestRequest, attempt: int) -> Ticket[LatestPage]:
        self._ctx.check_exists(topic)
        topic.touch(self._ctx.clock.now_ms(), read=True)
        return chain(self._floor_log.ensure_logged(topic), lambda _: self._begin(topic, request, attempt))

    def _begin(self, topic: TopicLog, request: LatestRequest, attempt: int) -> Ticket[LatestPage]:
        self._ctx.check_exists(topic)
        head = topic.head
        walk = TagWalk(topic, limit=request.limit, to_seq=head, prefix=request.prefix, after=request.after)

        def found(_: None) -> Ticket[LatestPage]:
            self._ctx.check_exists(topic)
            tags, after = _within(walk, request.budget_bytes)
            payload = PayloadSearch(self._ctx, topic, [walk.newest[tag] for tag in tags]).begin()
            return chain(payload, lambda read: self._answer(topic, request, attempt, walk, tags, after, head, read))

        return chain(self._walk(topic, walk), found)

    def _walk(self, topic: TopicLog, walk: TagWalk) -> Ticket[None]:
        for _ in range(STEPS):
            segment = walk.need()
            if segment is not None:
                loaded = self._ctx.files.fetch(topic, index_of(segment, segment.first_seq))
                return chain(loaded, lambda _: self._walk(topic, walk))
            walk.step()
            if walk.is_over:
                return resolved(None)
        return chain(self._ctx.files.later(), lambda _: self._walk(topic, walk))

    def _answer(
        self,
        topic: TopicLog,
        request: LatestRequest,
        attempt: int,
        walk: TagWalk,
        tags: list[bytes],
        after: bytes | None,
        head: int,
        read: Payload,
    ) -> Ticket[LatestPage]:
        if read.error is not None:
            raise read.error
        if read.damaged:
            raise CorruptSegment(topic.name, seq=read.damaged[0], segment="")
        seqs = [walk.newest[tag] for tag in tags]
        if any(seq not in read.found or not topic.live(seq) for seq in seqs):
            if attempt == ATTEMPTS_MAX:
                raise StorageIo(f"the latest records of {topic.name!r} are replaced faster than they can be read")
            return self._search(topic, request, attempt + 1)
        runs = []
        for seq in seqs:
            run, at = read.found[seq]
            if not removes_tag(run.record(at).blob):
                runs.append(RecordRun(run.buf, run.body_offs[at : at + 1], run.flags[at : at + 1]))
        size = sum(walk.sizes[tag] for tag in tags)
        return resolved(LatestPage(runs, None if after is None else after.decode(), head, epoch_of(topic, head), size))


def _within(walk: TagWalk, budget_bytes: int) -> tuple[list[bytes], bytes | None]:
    """The tags whose records the budget admits, at least one, and behind which tag the next page begins."""
    size, tags = 0, walk.tags
    for at, tag in enumerate(tags):
        size += walk.sizes[tag]
        if size > budget_bytes and at:
            return tags[:at], tags[at - 1]
    return tags, walk.after
