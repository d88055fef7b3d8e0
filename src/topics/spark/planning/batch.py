"""Batch planning: options to tasks. The cuts that a plan begins with fix the head of every topic."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Final

from topics.errors import ConfigError
from topics.model.position import Position
from topics.spark.logs.log import Log, LogAddress, open_log
from topics.spark.option_values import EARLIEST_SEQ, LATEST_SEQ, Bound, TextMatch
from topics.spark.options import ReadOptions
from topics.spark.planning.cut import TopicCut, report_gaps
from topics.spark.planning.tasks import Range, Task, TopicRead, batch_tasks, resolve_in
from topics.spark.scanning.arrow_columns import TextTest
from topics.spark.scanning.schema import Field
from topics.spark.scanning.task_scan import ReadSpec

PARALLELISM_ENV: Final = "_TOPICS_SPARK_PARALLELISM"  # for our own executors; a setting it is not
"""Cores of the session, told by `topics.spark.session()`: a source has no other way to learn it."""
_NAMES_SHOWN: Final = 8
WHOLE_TOPIC: Final = 1 << 62
"""A limit that no topic reaches: with it one task reads all of a topic, in order."""

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


@contextmanager
def collector_paused() -> Iterator[None]:
    """Without Python's cycle collector: a plan makes hundreds of thousands of objects and drops none of them, and the
    collector would walk through all of them again and again, for a third of the time of a large plan."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def plan_batch(options: ReadOptions, *, clock: WallClock = now_ms) -> list[Task]:
    """Tasks of a batch read."""
    with collector_paused():
        with closing(open_log(address_of(options))) as log:
            cuts = wanted_cuts(log, options, clock)
            refuse_no_match(log, options, cuts)
            ranges = {name: _range(log, cut, options) for name, cut in cuts.items()}
        gaps = {name: report_gaps(name, wanted.gaps, options.on_data_loss) for name, wanted in ranges.items()}
        return batch_tasks(
            [TopicRead(cut, ranges[name], gaps[name]) for name, cut in cuts.items()],
            partitions_min=options.min_partitions or parallelism(),
            records_max=options.max_records_per_partition,
            limit=WHOLE_TOPIC if options.latest_per_tag else options.limit,
        )


def wanted_cuts(log: Log, options: ReadOptions, clock: WallClock = now_ms) -> dict[str, TopicCut]:
    """The topics subscribed to; a name that does not exist is an error."""
    cuts = log.cuts(options.topics, now_ms=clock())
    for name in options.topics.names or ():
        if name not in cuts:
            known = log.names()
            raise ConfigError(f"there is no topic {name!r} in {address_of(options).shown}; {some_names(known)}")
    return dict(sorted(cuts.items()))


def refuse_no_match(log: Log, options: ReadOptions, cuts: Mapping[str, TopicCut]) -> None:
    """A pattern that no topic matches, where there are topics, is a mistake: the table would be empty."""
    known = log.names() if not cuts else []
    if known:
        raise ConfigError(no_match(options, known))


def no_match(options: ReadOptions, known: list[str]) -> str:
    pattern = options.topics.pattern or ""
    is_glob = pattern.endswith("*") and not pattern.endswith((".*", "]*", ")*"))
    hint = f"; for a prefix give subscribePrefix={pattern[:-1]}" if is_glob else ""
    return f"no topic of {address_of(options).shown} {options.topics.shown}{hint}; {some_names(known)}"


def some_names(names: list[str]) -> str:
    """What there is instead of what was asked for, shortened."""
    if not names:
        return "it has none"
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"it has {', '.join(names[:_NAMES_SHOWN])}{more}"


def _range(log: Log, cut: TopicCut, options: ReadOptions) -> Range:
    return resolve_in(log, cut, start_of(log, cut, options, default="earliest"), _end_of(log, cut, options))


def start_of(log: Log, cut: TopicCut, options: ReadOptions, *, default: str) -> int:
    """The first seq wanted; behind a position that is not of this topic lies nothing of it, so it is beyond the end."""
    ts_ms = options.starts_at_ms(cut.name)
    if ts_ms is not None:
        return _start_at(log, cut, ts_ms, options)
    bound = options.starting_offsets
    seq = named(bound, cut.name)
    if isinstance(seq, Position):
        return seq.seq + 1 if cut.has(seq) else cut.end_seq + 1
    word = bound if isinstance(bound, str) else default
    if seq is None or seq < 0:
        is_latest = word == "latest" if seq is None else seq == LATEST_SEQ
        return cut.end_seq if is_latest else cut.earliest_seq
    if seq > cut.end_seq and options.on_data_loss == "fail":
        raise ConfigError(
            f"option startingOffsets: {cut.name!r} is given {seq} and its next record will be {cut.end_seq}: "
            f"give at most that, or latest"
        )
    return max(seq, 1)


def _start_at(log: Log, cut: TopicCut, ts_ms: int, options: ReadOptions) -> int:
    found = log.seq_at(cut, ts_ms)
    if found >= cut.end_seq and options.starting_offsets_by_timestamp_strategy == "error":
        raise ConfigError(
            f"no record of topic {cut.name!r} is as young as {ts_ms} ms; to start at the end of such topics give "
            "startingOffsetsByTimestampStrategy=latest"
        )
    return found


def _end_of(log: Log, cut: TopicCut, options: ReadOptions) -> int:
    ts_ms = options.ends_at_ms(cut.name)
    if ts_ms is not None:
        return log.seq_at(cut, ts_ms)
    seq = named(options.ending_offsets, cut.name)
    if isinstance(seq, Position):
        if not cut.has(seq):
            raise ConfigError(f"option endingOffsets: {seq} is a position of another topic than {cut.name!r} is now")
        return min(seq.seq + 1, cut.end_seq)
    if seq == EARLIEST_SEQ:
        return cut.earliest_seq
    if seq is None or seq == LATEST_SEQ:
        return cut.end_seq
    return min(seq, cut.end_seq)


def named(bound: Bound | None, name: str) -> int | Position | None:
    """What an option says of one topic."""
    return bound.get(name) if isinstance(bound, Mapping) else None
