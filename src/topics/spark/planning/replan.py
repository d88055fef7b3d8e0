"""Replan: where the seqs of a task are now, when a file it names has vanished (pipeline.md section 10)."""

from __future__ import annotations

from topics.errors import Corruption
from topics.spark.logs.log import Log
from topics.spark.planning.cut import life_over
from topics.spark.planning.plan import Task, resolve, slices_of


def replan(log: Log, task: Task, lo: int, hi: int, *, now_ms: int) -> Task:
    """A task for the seqs `[lo, hi)` of the same topic instance, with what is lost of them as gaps."""
    cut = log.cuts(names=[task.topic], prefix=None, now_ms=now_ms).get(task.topic)
    if cut is None or cut.epoch != task.epoch:
        return Task(topic=task.topic, epoch=task.epoch, gaps=(life_over(cut, lo, hi),))
    for first, end in cut.missing:
        if first < hi and end > lo:
            raise Corruption(file=f"segment {first} of topic {task.topic!r}", offset=0, reason="file missing")
    first_live = log.first_live(cut, cut.earliest_seq) if lo < cut.evict_floor else None
    found = resolve(cut, lo, hi, first_live=first_live)
    return Task(
        topic=task.topic,
        epoch=task.epoch,
        slices=tuple(slices_of(cut, found.lo, found.hi)),
        gaps=found.gaps,
        dead=cut.dead,
        tag_deletes=cut.tag_deletes,
        ancestors=cut.ancestors,
    )
