"""Spans: a topic's records as ranges of seqs that lie in one place each, as a manifest lists them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from topics.errors import Internal

Span = tuple[int, int]
"""First and last seq, both included."""


def refuse_overlap(topic: str, spans: Iterable[Span]) -> None:
    """Raise unless every span begins behind the one before it: whoever reads them would get records twice."""
    listed = [(0, 0), *spans]
    for before, span in pairwise(listed):
        if not before[1] < span[0] <= span[1]:
            where = f"{span[0]}..{span[1]} after {before[0]}..{before[1]}"
            raise Internal(f"the blocks of topic {topic!r} are not in order: {where}; nothing was read")
