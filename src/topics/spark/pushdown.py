"""Pushdown: Spark's filters as bounds on seq and time, a choice of topics, and tests on tag and node.

A filter is taken only if it is applied in full: what is taken is not evaluated again by Spark, and results never depend
on pushdown being on. Everything else goes back. NULL never passes a comparison, as in SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from topics.spark.decode import NullTest, Test, TextTest

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_NEVER_NULL: Final = frozenset({"topic", "epoch", "seq", "ts", "data", "kind"})
_END: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Pushed:
    """What is left to read after filters: half-open bounds, topics (None: all) and tests."""

    seq_from: int = 0
    seq_to: int = _END
    ts_from_ms: int | None = None
    ts_to_ms: int | None = None
    topics: frozenset[str] | None = None
    tests: tuple[Test, ...] = ()


def push(filters: Iterable[Filter], *, with_tombstones: bool, with_limit: bool) -> tuple[Pushed, list[Filter]]:
    """The filters that are applied here, and those that Spark must apply.

    Tombstone rows are subject to filters like any row, and only Spark applies them to those: it gets all filters then,
    and what is done here merely saves reading. A limit counts records before Spark's filters, so with one only whole
    topics are left out here."""
    pushed, left = Pushed(), []
    for wanted in filters:
        taken = None if with_limit and _path(wanted) != ("topic",) else _take(pushed, wanted)
        if taken is None or with_tombstones:
            left.append(wanted)
        pushed = taken if taken is not None else pushed
    return pushed, left


def _path(wanted: Filter) -> tuple[str, ...]:
    path: tuple[str, ...] = getattr(wanted, "attribute", ())
    return path


def _take(pushed: Pushed, wanted: Filter) -> Pushed | None:
    path = _path(wanted)
    rule = _RULES.get((type(wanted), path[0])) if len(path) == 1 else None
    if rule is not None:
        return rule(pushed, getattr(wanted, "value", None))
    if isinstance(wanted, IsNotNull) and len(path) == 1 and path[0] in _NEVER_NULL:
        return pushed
    return None


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _seq_bounds(pushed: Pushed, value: Any, *, low: int | None = None, high: int | None = None) -> Pushed | None:
    if _integer(value) is None:
        return None
    seq_from = pushed.seq_from if low is None else max(pushed.seq_from, value + low)
    seq_to = pushed.seq_to if high is None else min(pushed.seq_to, value + high)
    return replace(pushed, seq_from=seq_from, seq_to=seq_to)


def _micros(value: Any) -> int | None:
    """Microseconds since the Unix epoch; a naive time is one of this process's zone, as PySpark has it."""
    if not isinstance(value, datetime):
        return None
    return (value.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)


def _ts_bound(pushed: Pushed, value: Any, *, is_low: bool, above: bool) -> Pushed | None:
    """Stored times are whole milliseconds: `>=` and `<` split at the next one, `>` and `<=` behind the present one."""
    micros = _micros(value)
    if micros is None:
        return None
    ceiling, following = -(-micros // 1000), micros // 1000 + 1
    bound = max(following if above else ceiling, 0)
    if is_low:
        return replace(pushed, ts_from_ms=max(pushed.ts_from_ms or 0, bound))
    return replace(pushed, ts_to_ms=bound if pushed.ts_to_ms is None else min(pushed.ts_to_ms, bound))


def _ts_equal(pushed: Pushed, value: Any) -> Pushed | None:
    """No record has a time between two milliseconds: the bounds cross then, and nothing is read."""
    above = _ts_bound(pushed, value, is_low=True, above=False)
    return None if above is None else _ts_bound(above, value, is_low=False, above=True)


def _topics(pushed: Pushed, values: Iterable[Any]) -> Pushed:
    chosen = frozenset(value for value in values if isinstance(value, str))
    return replace(pushed, topics=chosen if pushed.topics is None else pushed.topics & chosen)


def _texts(pushed: Pushed, column: str, values: Iterable[Any]) -> Pushed:
    chosen = tuple(value for value in values if isinstance(value, str))
    return replace(pushed, tests=(*pushed.tests, TextTest(column, chosen)))


def _prefix(pushed: Pushed, column: str, value: Any) -> Pushed | None:
    if not isinstance(value, str):
        return None
    return replace(pushed, tests=(*pushed.tests, TextTest(column, (), (value,))))


def _null(pushed: Pushed, column: str, *, is_null: bool) -> Pushed:
    return replace(pushed, tests=(*pushed.tests, NullTest(column, is_null)))


Rule = Callable[[Pushed, Any], Pushed | None]


def _text_rules(column: str) -> dict[tuple[type[Any], str], Rule]:
    return {
        (EqualTo, column): lambda p, v: _texts(p, column, (v,)) if isinstance(v, str) else None,
        (In, column): lambda p, v: _texts(p, column, v),
        (StringStartsWith, column): lambda p, v: _prefix(p, column, v),
        (IsNull, column): lambda p, _: _null(p, column, is_null=True),
        (IsNotNull, column): lambda p, _: _null(p, column, is_null=False),
    }


_RULES: Final[dict[tuple[type[Any], str], Rule]] = {
    (EqualTo, "seq"): lambda p, v: _seq_bounds(p, v, low=0, high=1),
    (GreaterThan, "seq"): lambda p, v: _seq_bounds(p, v, low=1),
    (GreaterThanOrEqual, "seq"): lambda p, v: _seq_bounds(p, v, low=0),
    (LessThan, "seq"): lambda p, v: _seq_bounds(p, v, high=0),
    (LessThanOrEqual, "seq"): lambda p, v: _seq_bounds(p, v, high=1),
    (EqualTo, "ts"): _ts_equal,
    (GreaterThan, "ts"): lambda p, v: _ts_bound(p, v, is_low=True, above=True),
    (GreaterThanOrEqual, "ts"): lambda p, v: _ts_bound(p, v, is_low=True, above=False),
    (LessThan, "ts"): lambda p, v: _ts_bound(p, v, is_low=False, above=False),
    (LessThanOrEqual, "ts"): lambda p, v: _ts_bound(p, v, is_low=False, above=True),
    (EqualTo, "topic"): lambda p, v: _topics(p, (v,)) if isinstance(v, str) else None,
    (In, "topic"): lambda p, v: _topics(p, v),
    **_text_rules("tag"),
    **_text_rules("node"),
}
