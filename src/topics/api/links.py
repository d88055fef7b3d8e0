"""Links out of reach: queues of a bound key whose dead letters go where the key may not
(`docs/spec/http-api.md#sec-8-7`).

An operator may want that. But until names in bodies were checked, the key itself could make such a queue, and nothing
stored says who did: so a start names them, and somebody can look."""

from __future__ import annotations

from collections.abc import Iterable

from topics.core.state import State
from topics.wire.access.keys import Key

NAMED_MAX = 20  # a start is not to fill the log


def links_out_of_reach(state: State, keys: Iterable[Key]) -> list[str]:
    """A sentence for each queue, for the server's log."""
    bound = [key for key in keys if key.prefixes]
    sentences = [
        f"dead letters of queue {topic.name!r} go to {dead!r}, which a key bound to "
        f"{'|'.join(key.prefixes)!r} may not write to: see that this is meant"
        for topic in state.topics.values()
        for key in bound
        if topic.config.is_queue
        and (dead := topic.config.dead_letter) is not None
        and key.permits_name(topic.name)
        and not key.permits_name(dead)
    ]
    more = len(sentences) - NAMED_MAX
    return sentences if more <= 0 else [*sentences[:NAMED_MAX], f"and so do {more} more"]
