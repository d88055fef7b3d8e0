"""StreamPlanner: the driver's side of a streaming read. Offsets in, offsets and tasks out.

No correctness hangs on `commit` or `stop`: the first comes late and never for the last batch, the second may not come
at all. The only state is the target of an `AvailableNow` run, and the last known ends of the topics, which are for
progress reports only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from topics.errors import DataLoss
from topics.model.position import Position
from topics.spark.logs.bulk_client import PLANNING_RETRIES, Remote
from topics.spark.logs.log import open_log
from topics.spark.option_values import Bound, TopicChoice
from topics.spark.options import ReadOptions
from topics.spark.planning.batch import WallClock, address_of, named, no_match, now_ms, start_of, wanted_cuts
from topics.spark.planning.cut import LostSeqs, TopicCut, life_over, report_gaps
from topics.spark.planning.cut import log as loss_log
from topics.spark.planning.offsets import (
    NextSeq,
    OffsetRange,
    Points,
    advance,
    between,
    from_json,
    heads,
    lifted,
    limit_bytes,
    limit_rows,
    to_json,
    trim_before,
    waiting,
)
from topics.spark.planning.query_cursor import QueryCursor
from topics.spark.planning.tasks import (
    Range,
    Task,
    TopicPart,
    even_parts,
    resolve_in,
    stream_parts,
    stream_size,
    stream_tasks,
)


class StreamPlanner:
    """One streaming query on the driver."""

    def __init__(self, options: ReadOptions, *, clock: WallClock = now_ms) -> None:
        self._options = options
        self._clock = clock
        self._log = open_log(address_of(options))
        self._is_wanted = options.topics.test()
        self._target: Points | None = None
        self._latest: Points | None = None
        self._triggered_ms = 0
        self._cursor: QueryCursor | None = None
        if options.cursor is not None:
            remote = Remote(address_of(options), retries=PLANNING_RETRIES)
            self._cursor = QueryCursor(remote, options.cursor, query=options.query_name or options.cursor)

    def close(self) -> None:
        self._log.close()
        if self._cursor is not None:
            self._cursor.close()

    def initial(self) -> dict[str, Any]:
        """Where a new query begins: `startingOffsets`, by default the end of every topic."""
        cuts = wanted_cuts(self._log, self._options, self._clock)
        if not cuts:
            loss_log.warning("%s; the stream waits for one", no_match(self._options, self._log.names()))
        options = self._options
        starts = {
            name: foreign_start(cut, options.starting_offsets)
            or NextSeq(cut.epoch, start_of(self._log, cut, options, default="latest"))
            for name, cut in cuts.items()
        }
        return to_json(starts)

    def committed(self, offset: Mapping[str, Any]) -> None:
        """The query has committed everything before this offset."""
        if self._cursor is not None:
            self._cursor.commit(from_json(offset))

    def latest(
        self,
        start: Mapping[str, Any],
        *,
        rows_max: int | None = None,
        bytes_max: int | None = None,
        rows_min: int | None = None,
    ) -> dict[str, Any]:
        """Where the next batch ends: at its start, as long as there is too little for one."""
        cuts = self._cuts()
        begin = lifted(from_json(start), cuts)
        self._announce_deleted(begin, cuts)
        self._latest = heads(cuts)
        end = advance(begin, self._target if self._target is not None else self._latest, cuts)
        if rows_min is not None and self._target is None and self._is_too_early(waiting(begin, end), rows_min):
            return to_json(begin)
        if rows_max is not None:
            end = limit_rows(begin, end, rows_max)
        if bytes_max is not None:
            end = limit_bytes(
                begin, end, bytes_max, bytes_end=lambda name, lo, size: self._log.bytes_end(cuts[name], lo, size)
            )
        return to_json(end)

    def _is_too_early(self, waiting: int, rows_min: int) -> bool:
        """Whether the next batch waits for more records; none waits longer than `maxTriggerDelay`."""
        now = self._clock()
        if waiting < rows_min and now - self._triggered_ms < self._options.max_trigger_delay:
            return True
        self._triggered_ms = now
        return False

    def ends(self) -> dict[str, Any]:
        """Where the next batch ends, for a PySpark that does not say where it starts."""
        self._latest = heads(self._cuts())
        return to_json(self._latest)

    def report(self) -> dict[str, Any] | None:
        """The end of every topic as last asked for, so that progress shows the backlog."""
        return to_json(self._latest) if self._latest is not None else None

    def fix_target(self) -> None:
        """An `AvailableNow` run reads what is there now, and stops."""
        self._target = heads(self._cuts())

    def tasks(self, start: Mapping[str, Any], end: Mapping[str, Any], *, new_from_first: bool = False) -> list[Task]:
        """Tasks of the batch between two offsets; gaps are announced, raised or become rows.

        `new_from_first`: a topic that only the second offset names is read from its first record that is left."""
        begin, stop = from_json(start), from_json(end)
        cuts = {**self._cuts(), **self._cuts_of_others(begin, stop)}
        begin, stop = lifted(begin, cuts), lifted(stop, cuts)
        if new_from_first:
            self._announce_deleted(begin, cuts)
        ranges = list(between(begin, stop, cuts, new_from_first=new_from_first))
        total = sum(each.hi - each.lo for each in ranges)
        options = self._options
        size = stream_size(total, partitions_min=options.min_partitions, records_max=options.max_records_per_partition)
        return stream_tasks((part for each in ranges for part in self._parts_of(each, cuts.get(each.name), size)), size)

    def _parts_of(self, each: OffsetRange, cut: TopicCut | None, size: int) -> Iterator[tuple[int, TopicPart]]:
        """Parts of one topic, each with the seqs that it was planned for."""
        whole, ranges = TopicPart(topic=each.name, epoch=each.epoch), even_parts(each.lo, each.hi, size)
        wanted = Range(each.lo, each.lo)
        if cut is None or cut.epoch != each.epoch:
            # The instance this batch belongs to is gone, with everything that was not read of it.
            met: tuple[LostSeqs, ...] = (life_over(cut, each.lo, each.hi),)
            cut = None
        else:
            whole = replace(whole, ancestors=cut.ancestors)
            wanted = resolve_in(self._log, cut, each.lo, each.hi)
            met = wanted.gaps if each.was is None else (LostSeqs(1, cut.head_seq, "recreated"), *wanted.gaps)
            if each.is_new:
                met = tuple(gap for gap in met if gap.gap_from > each.lo)  # nobody has missed what went before
            if each.lo <= cut.end_seq < each.hi:
                # What an offset names was there once: a log that ends before it has lost its end.
                met = (*met, LostSeqs(cut.end_seq, each.hi - 1, "restart"))
            if each.lo > cut.end_seq:
                ranges = even_parts(wanted.lo, wanted.hi, size)  # not the topic it was: reading starts over
        gaps = report_gaps(each.name, met, self._options.on_data_loss)
        counts = (hi - lo for lo, hi in ranges)
        return zip(counts, stream_parts(whole, cut, wanted, ranges, gaps), strict=True)

    def trim(self, end: Mapping[str, Any]) -> None:
        """Delete what lies before a committed offset. It may be repeated or left out without harm."""
        cuts = self._cuts()
        trim_before(Remote(address_of(self._options)), lifted(from_json(end), cuts), cuts)

    def _cuts(self) -> dict[str, TopicCut]:
        return self._log.cuts(self._options.topics, now_ms=self._clock())

    def _cuts_of_others(self, begin: Points, stop: Points) -> dict[str, TopicCut]:
        """A batch that is repeated after a restart has the topics it had, also those not subscribed to any more."""
        others = tuple(name for name, point in stop.items() if begin.get(name) != point and not self._is_wanted(name))
        return self._log.cuts(TopicChoice(others), now_ms=self._clock()) if others else {}

    def _announce_deleted(self, begin: Points, cuts: Mapping[str, TopicCut]) -> None:
        """Fails or warns for topics of the offset that do not exist any more.

        They stay in the offset, so that a topic of that name made later is a `recreated` gap. So do topics that this
        run does not subscribe to: a later run may."""
        for name in sorted(filter(self._is_wanted, begin.keys() - cuts.keys())):
            if self._options.on_data_loss == "fail" and self._options.topics.names is not None:
                raise DataLoss(topic=name, gap_from=begin[name].seq, gap_to=begin[name].seq, reason="deleted")
            loss_log.warning("topic %r does not exist any more; the stream waits for a new one of that name", name)


def foreign_start(cut: TopicCut, starting: Bound | None) -> NextSeq | None:
    """A position of another life stays what it is, so that the first batch announces it; None for every other start."""
    given = named(starting, cut.name)
    if not isinstance(given, Position) or given.epoch is None or cut.has(given):
        return None
    return NextSeq(given.epoch, given.seq + 1)
