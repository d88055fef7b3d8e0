"""Fresh records: what a reader near the head finds, without a walk.

Most reads of live delivery are for the few records just written. Where nothing stands in the way (no floor, no lost
range, no removal, no filter, all in one chunk in memory), the outcome is a slice. Always holds: an outcome given here
is the one `core.read` would give; None means to go that way. Called by the engine's reads."""

from __future__ import annotations

from topics.core.lineage import epoch_of, is_foreign
from topics.core.reading.recent import RecentCache
from topics.core.reading.request import ReadOutcome, ReadRequest
from topics.core.topic import TopicLog

FRESH_MAX = 16


def read_fresh(topic: TopicLog, request: ReadRequest, recent: RecentCache) -> ReadOutcome | None:
    first, head = request.from_seq + 1, topic.head
    count = head - first + 1
    if not 0 < count <= min(FRESH_MAX, request.limit) or not _is_plain(topic, request) or not _fits(topic, request):
        return None
    chunk = recent.find(topic.id, first) or topic.resident.find(first)
    if chunk is None or chunk.next_seq <= head:
        return None
    return ReadOutcome(
        runs=[chunk.run(first, head + 1)],
        records=count,
        next_from_seq=head,
        head_seq=head,
        earliest_seq=topic.earliest_seq,
        caught_up=True,
        lag=0,
        tombstone=None,
        scanned=count,
        epoch=epoch_of(topic, head),
    )


def _is_plain(topic: TopicLog, request: ReadRequest) -> bool:
    """Everything behind the reader is live and for its eyes."""
    if request.nodes is not None or request.head_limit is not None or len(topic.lost):
        return False
    return topic.floors.earliest_seq <= request.from_seq + 1 and not is_foreign(topic, request.from_seq, request.epoch)


def _fits(topic: TopicLog, request: ReadRequest) -> bool:
    """All slots are in the last run, none was deleted, and together they are within the budget."""
    runs, first = topic.tail.runs, request.from_seq + 1
    if not runs or runs[-1].deleted or runs[-1].first_seq > first or runs[-1].next_seq != topic.head + 1:
        return False
    sizes = runs[-1].sizes[first - runs[-1].first_seq :]
    return len(sizes) == 1 or sum(sizes) <= request.budget_bytes
