"""Manifest: where the live records of a topic lie, as blocks for whoever reads a topic in bulk.

What always holds: blocks are disjoint and ascending, and every live record lies in exactly one. A block without a live
record is left out. The tail is not always the last block: after a crash the log may bring back records below sealed
segments, of segments that were dropped since, and they stay in the tail until a checkpoint has seen them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from topics.core.retention.removal import blocks_from
from topics.core.slots.sealed_slots import Sealed
from topics.core.slots.tail import TailRun
from topics.core.topic import TopicLog


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """Seqs `first_seq..last_seq`, of which `live` are live: a sealed segment, or neighbouring runs of the tail."""

    first_seq: int
    last_seq: int
    live: int
    source: Sealed | list[TailRun]


def stored_blocks(topic: TopicLog) -> list[StoredBlock]:
    """Every block that holds a live record."""
    blocks: list[StoredBlock] = []
    earliest = topic.floors.earliest_seq
    for is_sealed, group in groupby(blocks_from(topic, earliest), key=lambda block: isinstance(block, Sealed)):
        if is_sealed:
            blocks += [StoredBlock(s.first_seq, s.next_seq - 1, s.live, s) for s in group if isinstance(s, Sealed)]
        else:
            runs = [run for run in group if isinstance(run, TailRun)]
            live = sum(run.live_totals(max(earliest - run.first_seq, 0), run.count)[0] for run in runs)
            blocks.append(StoredBlock(runs[0].first_seq, runs[-1].next_seq - 1, live, runs))
    return [block for block in blocks if block.live]
