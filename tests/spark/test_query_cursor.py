"""Cursors of streaming queries, as a planner commits them on a real server."""

from __future__ import annotations

from typing import Any

import pytest
from tests.spark.served import Served

from topics.errors import CursorFenced
from topics.spark.options import read_options
from topics.spark.planning.stream import StreamPlanner


def planner(served: Served, topics: str, **given: str) -> StreamPlanner:
    options = {"url": served.url, "subscribe": topics, "startingOffsets": "earliest", "cursor": "job", **given}
    return StreamPlanner(read_options(options, streaming=True))


def cursor(served: Served, topic: str) -> Any:
    return served.call("GET", f"/v0/topics/{topic}/cursors/job")


def batch(planner: StreamPlanner, start: dict[str, Any], rows_max: int) -> dict[str, Any]:
    """What Spark does: the start of the next batch is what it has committed."""
    planner.committed(start)
    return planner.latest(start, rows_max=rows_max)


def test_a_cursor_stands_where_the_query_has_committed(served: Served) -> None:
    served.write("qc-a", *range(10))
    query = planner(served, "qc-a", queryName="nightly")
    first = query.initial()
    second = batch(query, first, 4)
    assert second["qc-a"]["seq"] == 5
    found = cursor(served, "qc-a")
    assert (found["seq"], found["lag"]["records"]) == (0, 10), "the batch is planned, not committed"
    batch(query, second, 4)
    found = cursor(served, "qc-a")
    assert (found["seq"], found["lag"]["records"]) == (4, 6)
    assert found["meta"] == {"kind": "spark", "query": "nightly"}
    query.close()


def test_a_run_that_starts_behind_its_cursor_sets_it_back(served: Served) -> None:
    served.write("qc-b", *range(10))
    late = planner(served, "qc-b")
    epoch = late.initial()["qc-b"]["epoch"]
    late.committed({"qc-b": {"epoch": epoch, "seq": 9}})
    assert cursor(served, "qc-b")["seq"] == 8
    early = planner(served, "qc-b")
    early.committed({"qc-b": {"epoch": epoch, "seq": 3}})
    assert cursor(served, "qc-b")["seq"] == 2
    late.close()
    early.close()


def test_a_topic_that_is_gone_does_not_stop_the_others(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.write("qc-c", 1)
    served.write("qc-d", 1)
    query = planner(served, "qc-c,qc-d")
    start = query.initial()
    served.drop("qc-c")
    query.committed({name: {**point, "seq": 2} for name, point in start.items()})
    assert "cursor 'job' of topic 'qc-c' stays where it is" in caplog.text
    assert cursor(served, "qc-d")["seq"] == 1
    query.close()


def test_a_cursor_that_somebody_else_has_taken_over_ends_the_query(served: Served) -> None:
    served.write("qc-e", 1)
    served.call("PUT", "/v0/topics/qc-e/cursors/job", {"to": "start", "owner": "another"})
    query = planner(served, "qc-e")
    with pytest.raises(CursorFenced, match="taken over by 'another'"):
        query.committed(query.initial())
    query.close()
