"""Batch planning: options to tasks. The cuts that a plan begins with fix the head of every topic."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Final

from topics.errors import ConfigError
from topics.model.position import Position
from topics.spark.logs.log import Log, LogAddress, open_log
from topics.spark.options import EARLIEST_SEQ, LATEST_SEQ, Bound, ReadOptions, TextMatch
from topics.spark.planning.cut import TopicCut, report_gaps
from topics.spark.planning.tasks import Range, Task, resolve_in, target_size, tasks_of
from topics.spark.scanning.arrow_columns import TextTest
from topics.spark.scanning.schema import Field
from topics.spark.scanning.task_scan import ReadSpec

PARALLELISM_ENV: Final = "_TOPICS_SPARK_PARALLELISM"  # for our own executors; a setting it is not
"""Cores of the session, told by `topics.spark.session()`: a source has no other way to learn it."""
_NAMES_SHOWN: Final = 8

WallClock = Callable[[], int]


def address_of(options: ReadOptions) -> LogAddress:
    return LogAddress(path=options.path, cold_path=options.cold_path, url=options.url, api_key=options.api_key)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def parallelism() -> int:
    """Tasks that can run at the same time, as far as this process can know."""
    told = os.environ.get(PARALLELISM_ENV, "")
    return int(told) if told.isdigit() and int(told) else os.cpu_count() or 1


def read_spec(options: ReadOptions, fields: tuple[Field, ...]) -> ReadSpec:
    """How the tasks of a read are carried out."""
    wanted = (("tag", options.tag), ("node", options.node))
    return ReadSpec(
        address=address_of(options),
        fields=fields,
        tests=tuple(_test(column, match) for column, match in wanted if match is not None),
        verify=options.verify_checksums,
        on_loss=options.on_data_loss,
    )


def _test(column: str, match: TextMatch) -> TextTest:
    return TextTest(column, (), (match.value,)) if match.is_prefix else TextTest(column, (match.value,))


def plan_batch(options: ReadOptions, *, clock: WallClock = now_ms) -> list[Task]:
    """Tasks of a batch read."""
    with closing(open_log(address_of(options))) as log:
        cuts = wanted_cuts(log, options, clock)
        ranges = {name: _range(log, cut, options) for name, cut in cuts.items()}
    gaps = {name: report_gaps(name, wanted.gaps, options.on_data_loss) for name, wanted in ranges.items()}
    total = sum(max(wanted.hi - wanted.lo, 0) for wanted in ranges.values())
    target = target_size(
        total, partitions_min=options.min_partitions or parallelism(), records_max=options.max_records_per_partition
    )
    return [
        task
        for name, wanted in ranges.items()
        for task in tasks_of(
            cuts[name],
            wanted,
            records_max=options.max_records_per_partition,
            target=target,
            gaps=gaps[name],
            limit=options.limit,
        )
    ]


def wanted_cuts(log: Log, options: ReadOptions, clock: WallClock = now_ms) -> dict[str, TopicCut]:
    """The topics subscribed to; a name that does not exist is an error."""
    cuts = log.cuts(names=options.subscribe, prefix=options.subscribe_pattern, now_ms=clock())
    for name in options.subscribe or ():
        if name not in cuts:
            known = log.names()
            raise ConfigError(f"there is no topic {name!r} in {address_of(options).shown}; {some_names(known)}")
    return dict(sorted(cuts.items()))


def some_names(names: list[str]) -> str:
    """What there is instead of what was asked for, shortened."""
    if not names:
        return "it has none"
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"it has {', '.join(names[:_NAMES_SHOWN])}{more}"


def _range(log: Log, cut: TopicCut, options: ReadOptions) -> Range:
    lo = start_of(log, cut, options.starting_offsets, options.starting_timestamp, default="earliest")
    return resolve_in(log, cut, lo, _end_of(log, cut, options))


def start_of(log: Log, cut: TopicCut, bound: Bound | None, ts_ms: int | None, *, default: str) -> int:
    """The first seq wanted; behind a position that is not of this topic lies nothing of it, so it is beyond the end."""
    if ts_ms is not None:
        return log.seq_at(cut, ts_ms)
    seq = named(bound, cut.name)
    if isinstance(seq, Position):
        return seq.seq + 1 if cut.has(seq) else cut.end_seq + 1
    word = bound if isinstance(bound, str) else default
    if seq is None or seq < 0:
        is_latest = word == "latest" if seq is None else seq == LATEST_SEQ
        return cut.end_seq if is_latest else cut.earliest_seq
    return max(seq, 1)


def _end_of(log: Log, cut: TopicCut, options: ReadOptions) -> int:
    if options.ending_timestamp is not None:
        return log.seq_at(cut, options.ending_timestamp)
    seq = named(options.ending_offsets, cut.name)
    if isinstance(seq, Position):
        if not cut.has(seq):
            raise ConfigError(f"option endingOffsets: {seq} is a position of another topic than {cut.name!r} is now")
        return min(seq.seq + 1, cut.end_seq)
    if seq == EARLIEST_SEQ or options.ending_offsets == "earliest":
        return cut.earliest_seq
    if seq is None or seq == LATEST_SEQ:
        return cut.end_seq
    return min(seq, cut.end_seq)


def named(bound: Bound | None, name: str) -> int | Position | None:
    """What an option says of one topic."""
    return bound.get(name) if isinstance(bound, Mapping) else None
