"""Memory of ephemeral topics: what dies there is in no file, so its slots, tags and bytes are given back here.

Other topics need none of this: their slots leave with a sealed segment, their bytes with the recent cache. Called after
every op that removed something; the cost is spread over the removals that made it necessary.
"""

from topics.core.front import Removal
from topics.core.topic import TopicState

SLOTS_KEPT = 1024  # dead slots at the front are dropped together, so that dropping costs little per slot
RECORDS_KEPT = 256  # likewise for records that died in the middle


def forget_dead(topic: TopicState, removal: Removal) -> None:
    """The front at once, by whole chunks; the middle when the dead are more than the living."""
    earliest = topic.earliest_seq
    topic.resident.drop_below(earliest)
    runs = topic.tail.runs
    if runs and earliest - runs[0].first_seq >= max(SLOTS_KEPT, topic.count):
        topic.tail.drop_below(earliest)
        topic.tags.drop_below(earliest)
    topic.resident.removed += sum(map(len, removal.seqs))
    if topic.resident.removed > max(RECORDS_KEPT, topic.count):
        topic.resident.thin_out(topic.live)
