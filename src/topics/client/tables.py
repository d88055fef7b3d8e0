"""Tables: a topic as an Arrow table or a DataFrame, through every door (`docs/spec/readers.md#sec-8`).

Pages come as columns, out of the stored bytes; no Python object is made for a record. A gap stops the read or is told
in a warning and in the table's metadata: a table without either has every record that was asked for."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar
from warnings import warn

import msgspec

from topics import limits
from topics.client import routes
from topics.client.arrow_pages import pyarrow, read_page
from topics.client.readers import from_ts_ms
from topics.client.routes import Route
from topics.errors import ConfigError, InvalidRequest, TopicsWarning
from topics.model.names import TagMatch
from topics.model.paging import After, Gap, Walk, node_names
from topics.model.position import Position, checked_position
from topics.wire.incoming.requests import TableRequest, checked, predicate

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import polars as pl
    import pyarrow as pa

Q = TypeVar("Q")
T = TypeVar("T")

TableGaps = Literal["raise", "warn"]
Time = int | datetime
"""Milliseconds since the epoch, or a time; one without a zone is local."""
Tag = str | list[str] | TagMatch | None

PAGE_RECORDS: Final = 50_000
PAGE_BYTES: Final = 16 * limits.MIB
"""Of one answer: large enough to cost little a record, and small enough for others to have their turn in between."""


class TableVerbs:
    """The verbs of a topic that give tables."""

    name: str

    async def _run(self, route: Route[Q, T], request: Q) -> T:
        raise NotImplementedError

    async def to_arrow(
        self,
        after: After = 0,
        *,
        columns: Sequence[str] | None = None,
        tag: Tag = None,
        from_ts: Time | None = None,
        limit: int | None = None,
        exclude_nodes: Iterable[str] = (),
        gaps: TableGaps = "raise",
    ) -> pa.Table:
        """Everything behind a position, or from a time on, up to the head of this moment, as one `pyarrow.Table`.

        Columns are `seq`, `ts`, `tag`, `node`, `meta` and `data`, the last two as JSON text; `columns` picks some.
        `tag` is a tag or, ending in `*`, a prefix. Lost records raise DataLoss; with `gaps="warn"` they are a
        `TopicsWarning` and stand in the schema's metadata as `topics.gaps`. `topics.next` there is where to go on."""
        arrow, lost = pyarrow(), list[Gap]()
        tables: list[pa.Table] = []
        end = checked_position(after)
        pages = self._table_pages(
            after, columns=columns, tag=tag, from_ts=from_ts, limit=limit, exclude_nodes=exclude_nodes, gaps=gaps
        )
        async for table, gaps_met, behind in pages:
            end = behind
            lost += gaps_met
            if table.num_rows or not tables:
                tables.append(table)
        told = {"topics.topic": self.name, "topics.next": str(end)}
        if lost:
            told["topics.gaps"] = msgspec.json.encode(lost).decode()
        for gap in lost:
            text = f"records {gap.gap_from}..{gap.gap_to} of topic {self.name!r} are lost ({gap.reason})"
            warn(f"{text}; the table goes on behind them", TopicsWarning, stacklevel=3)
        if not tables:  # no record is wanted
            tables.append(_empty(self.name, columns))
        return arrow.concat_tables(tables).replace_schema_metadata(told)

    async def _table_pages(
        self,
        after: After,
        *,
        columns: Sequence[str] | None = None,
        tag: Tag = None,
        from_ts: Time | None = None,
        limit: int | None = None,
        exclude_nodes: Iterable[str] = (),
        gaps: TableGaps = "raise",
    ) -> AsyncGenerator[tuple[pa.Table, list[Gap], Position], None]:
        """What `to_arrow` puts together: tables without metadata, the gaps in front of each, and where each ends."""
        if gaps not in ("raise", "warn"):
            raise InvalidRequest(f'gaps is "raise" or "warn", not {gaps!r}')
        walk = Walk(self.name, after, gaps="raise" if gaps == "raise" else "yield", limit=limit)
        start: dict[str, Any] = {"from_seq": walk.position.given}
        if from_ts is not None:
            if not walk.is_new:
                raise InvalidRequest("a read begins behind a position or at a time, not both")
            walk.arrive()  # who asks for a time has not asked for whatever is there: a lost front is a loss
            start = {"from_ts": from_ts_ms(from_ts)}
        wanted: dict[str, Any] = {"node": node_names(exclude_nodes) or None, "tag": predicate(tag)}
        wanted |= {"columns": None if columns is None else list(columns), "max_batch_bytes": PAGE_BYTES}
        while not walk.is_full:
            request = checked(TableRequest, **start, **wanted, limit=walk.page_limit(PAGE_RECORDS))
            page = await self._run(routes.TABLE, request)
            found, count = walk.enter(page.told, page.table.num_rows)
            yield page.table.slice(0, count).replace_schema_metadata(None), found, walk.position
            if not walk.has_more(page.told):
                return
            start = {"from_seq": walk.position.given}

    async def to_pandas(
        self,
        after: After = 0,
        *,
        columns: Sequence[str] | None = None,
        tag: Tag = None,
        from_ts: Time | None = None,
        limit: int | None = None,
        exclude_nodes: Iterable[str] = (),
        gaps: TableGaps = "raise",
    ) -> pd.DataFrame:
        """`to_arrow` as a pandas DataFrame."""
        try:
            import pandas  # noqa: F401
        except ImportError as error:
            raise ConfigError("to_pandas needs pandas: pip install pandas") from error
        table = await self.to_arrow(
            after, columns=columns, tag=tag, from_ts=from_ts, limit=limit, exclude_nodes=exclude_nodes, gaps=gaps
        )
        return table.to_pandas()

    async def to_polars(
        self,
        after: After = 0,
        *,
        columns: Sequence[str] | None = None,
        tag: Tag = None,
        from_ts: Time | None = None,
        limit: int | None = None,
        exclude_nodes: Iterable[str] = (),
        gaps: TableGaps = "raise",
    ) -> pl.DataFrame:
        """`to_arrow` as a Polars DataFrame."""
        try:
            import polars
        except ImportError as error:
            raise ConfigError("to_polars needs polars: pip install polars") from error
        table = await self.to_arrow(
            after, columns=columns, tag=tag, from_ts=from_ts, limit=limit, exclude_nodes=exclude_nodes, gaps=gaps
        )
        return polars.from_arrow(table)  # type: ignore[return-value]


def _empty(topic: str, columns: Sequence[str] | None) -> pa.Table:
    asked = checked(TableRequest, columns=None if columns is None else list(columns))
    from topics.wire.outgoing.record_table import table_metadata, table_stream  # loads numpy

    told = table_metadata(topic, next_from_seq=0, head_seq=0, earliest_seq=1, tombstone=None, epoch=0)
    return read_page(table_stream([], asked.columns, told)).table.replace_schema_metadata(None)
