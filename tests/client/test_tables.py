"""A topic as a table, through every door: what `read` gives, in columns (`docs/spec/readers.md#sec-8`)."""

from __future__ import annotations

import sys
import warnings
from datetime import UTC, datetime
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.api.server import LiveServer

import topics
from topics import DataLoss, Event, Gap, Json, TopicsWarning
from topics.client import Client, tables
from topics.errors import ConfigError, InvalidRequest, TopicNotFound
from topics.model.results import Record

pytestmark = pytest.mark.timeout(60)

COLUMNS = ["seq", "ts", "tag", "node", "meta", "data"]
ARROW = "application/vnd.apache.arrow.stream"


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    at = table.schema.get_field_index("ts")
    if at >= 0:
        table = table.set_column(at, "ts", table.column(at).cast(pa.int64()))
    return [tuple(row.values()) for row in table.to_pylist()]


def row_of(record: Record) -> tuple[Any, ...]:
    meta = bytes(record.meta).decode() if isinstance(record.meta, msgspec.Raw) else None
    return record.seq, record.ts, record.tag, record.node, meta, bytes(record.data).decode()  # type: ignore[arg-type]


# --- columns ---------------------------------------------------------------------------------------------------------


def test_a_table_has_every_record_with_its_exact_texts(door: Client, name: str) -> None:
    topic = door.topic(name)
    topic.append(Json(b'{"b":1.50,  "a":[null]}'), tag="t:1", node="n", meta={"k": "ü"})
    topic.append(Json(b'"\\ud800 ,\\"m\\":"'))
    topic.append({"d": {"m": 1}}, tag="")
    table = topic.to_arrow()
    assert table.schema.names == COLUMNS
    assert [str(kind) for kind in table.schema.types] == [
        "uint64",
        "timestamp[ms, tz=UTC]",
        "string",
        "string",
        "string",
        "string",
    ]
    assert rows_of(table) == [row_of(record) for record in topic.read()]
    assert table["data"].to_pylist() == ['{"b":1.50,  "a":[null]}', '"\\ud800 ,\\"m\\":"', '{"d":{"m":1}}']
    assert (table["tag"].to_pylist(), table["meta"].to_pylist()) == (["t:1", None, ""], ['{"k":"ü"}', None, None])


def test_columns_are_those_asked_for_in_the_order_asked_for(door: Client, name: str) -> None:
    topic = door.topic(name)
    topic.append_many([1, 2, 3])
    table = topic.to_arrow(columns=["data", "seq"])
    assert (table.schema.names, rows_of(table)) == (["data", "seq"], [("1", 1), ("2", 2), ("3", 3)])


@pytest.mark.parametrize("columns", [[], ["seq", "seq"], ["offset"]])
def test_columns_that_do_not_exist_or_repeat_are_refused(door: Client, name: str, columns: list[str]) -> None:
    door.topic(name).append(1)
    with pytest.raises(InvalidRequest):
        door.topic(name).to_arrow(columns=columns)


def test_a_table_begins_behind_a_position_or_at_a_time(door: Client, name: str) -> None:
    topic = door.topic(name)
    topic.append_many(["a", "b"])
    second = list(topic.read())[1]
    topic.append("c")
    assert topic.to_arrow(second, columns=["seq"])["seq"].to_pylist() == [3]
    assert topic.to_arrow(2, limit=1)["seq"].to_pylist() == [3]
    assert topic.to_arrow(from_ts=second.ts)["seq"].to_pylist() == [1, 2, 3]
    assert topic.to_arrow(from_ts=datetime(2200, 1, 1, tzinfo=UTC)).num_rows == 0
    with pytest.raises(InvalidRequest, match="not both"):
        topic.to_arrow(second, from_ts=second.ts)


def test_a_table_says_where_to_go_on(door: Client, name: str) -> None:
    topic = door.topic(name)
    topic.append_many([1, 2])
    position = topic.to_arrow().schema.metadata[b"topics.next"].decode()
    topic.append(3)
    assert topic.to_arrow(position)["data"].to_pylist() == ["3"]


def test_a_table_has_the_records_of_a_tag_or_of_a_prefix(door: Client, name: str) -> None:
    topic = door.topic(name)
    topic.append_many([Event(at, tag=tag) for at, tag in enumerate(["a:1", "b", "a:2", None, "a:1"])])
    assert topic.to_arrow(tag="a:1")["seq"].to_pylist() == [1, 5]
    assert topic.to_arrow(tag="a:*")["seq"].to_pylist() == [1, 3, 5]
    assert topic.to_arrow(exclude_nodes="x", tag="*")["seq"].to_pylist() == [1, 2, 3, 5]


def test_a_table_without_records_has_its_columns(door: Client, name: str) -> None:
    topic = door.topic(name)
    topic.append(1)
    assert topic.to_arrow(1).schema.names == COLUMNS
    assert (topic.to_arrow(limit=0).num_rows, topic.to_arrow(limit=0, columns=["ts"]).schema.names) == (0, ["ts"])
    with pytest.raises(TopicNotFound):
        door.topic("none-of-it").to_arrow()


def test_more_records_than_a_page_has_come_whole_and_in_order(
    door: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PAGE_RECORDS", 11_000)  # above what a filtered read looks at
    topic = door.topic(name)
    for first in range(0, 30_000, 10_000):
        topic.append_many(list(range(first, first + 10_000)))
    table = topic.to_arrow(columns=["seq", "data"])
    assert table["seq"].to_pylist() == list(range(1, 30_001))
    assert table["data"].to_pylist()[::9999] == ["0", "9999", "19998", "29997"]
    assert topic.to_arrow(exclude_nodes="x", limit=25_000).num_rows == 25_000


# --- loss ------------------------------------------------------------------------------------------------------------


def test_a_gap_stops_a_table_or_is_told(door: Client, name: str) -> None:
    topic = door.topic(name, cap_records=5)
    topic.append_many(list(range(20)))
    with pytest.raises(DataLoss) as lost:
        topic.to_arrow(3)
    assert (lost.value.gap_from, lost.value.gap_to) == (4, 15)
    with pytest.warns(TopicsWarning, match=r"records 4\.\.15 .*are lost"):
        table = topic.to_arrow(3, gaps="warn")
    assert table["seq"].to_pylist() == [16, 17, 18, 19, 20]
    assert b'"gap_from":4' in table.schema.metadata[b"topics.gaps"]
    assert topic.to_arrow()["seq"].to_pylist() == [16, 17, 18, 19, 20]  # who starts at 0 asks for what is there


def test_a_front_that_may_have_had_records_of_the_time_is_a_loss(door: Client, name: str) -> None:
    topic = door.topic(name, cap_records=5)
    topic.append_many(list(range(20)))
    with pytest.raises(DataLoss):
        topic.to_arrow(from_ts=1)


# --- frames ----------------------------------------------------------------------------------------------------------


def test_pandas_and_polars_have_the_same_rows(door: Client, name: str) -> None:
    pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    topic = door.topic(name)
    topic.append_many([Event({"n": at}, tag=f"t{at}") for at in range(3)])
    assert topic.to_pandas(columns=["seq", "tag"]).to_dict("list") == {"seq": [1, 2, 3], "tag": ["t0", "t1", "t2"]}
    frame = topic.to_polars()
    assert frame["data"].str.json_path_match("$.n").to_list() == ["0", "1", "2"]
    assert frame.schema["seq"] == polars.UInt64


@pytest.mark.parametrize("module", ["pyarrow", "pandas", "polars"])
def test_a_library_that_is_missing_is_named_in_one_sentence(
    door: Client, name: str, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    door.topic(name).append(1)
    verb = "to_arrow" if module == "pyarrow" else f"to_{module}"
    with pytest.raises(ConfigError, match=f"needs {module}: pip install"):
        getattr(door.topic(name), verb)()


# --- the wire --------------------------------------------------------------------------------------------------------


def test_diff_answers_with_a_table_by_accept(server: LiveServer, url: str, name: str) -> None:
    with topics.connect(url) as client:
        client.topic(name, cap_records=2).append_many([1, 2, 3])
    path = f"{url}/v0/topics/{name}/diff"
    answer = httpx.post(path, json={"from_seq": 0, "columns": ["seq"], "limit": 70_000}, headers={"Accept": ARROW})
    assert (answer.status_code, answer.headers["content-type"]) == (200, ARROW)
    table = pa.ipc.open_stream(answer.content).read_all()
    told = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    assert table["seq"].to_pylist() == [2, 3]
    assert (told["topics.head_seq"], told["topics.earliest_seq"], told["topics.caught_up"]) == ("3", "2", "true")
    assert '"gap_from":1,"gap_to":1,"reason":"cap"' in told["topics.tombstone"]
    plain = httpx.post(path, json={"from_seq": 0}).json()
    assert (plain["next"], len(plain["records"])) == (told["topics.next"], 2)
    refused = httpx.post(path, json={"columns": ["offset"]}, headers={"Accept": ARROW})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_request")
    unknown = httpx.post(path, json={"colums": ["seq"]}, headers={"Accept": ARROW})
    assert "colums" in pa.ipc.open_stream(unknown.content).schema.metadata[b"topics.warnings"].decode()


# --- the same as read ------------------------------------------------------------------------------------------------

TAGS = st.sampled_from([None, "", "a", "a:1", "a:2", "b"])
PAYLOADS = st.sampled_from([b"1", b'{"m":[{}]}', b'"\\",\\"m\\":1"', b'[",\\"m\\":"]', '"ü€"'.encode(), b"null"])
METAS = st.sampled_from([None, {}, {"k": 'v,"m":1'}])
BATCHES = st.lists(
    st.builds(
        lambda data, tag, node, meta: Event(Json(data), tag=tag, node=node, meta=meta),
        PAYLOADS,
        TAGS,
        st.sampled_from([None, "n1", "n2"]),
        METAS,
    ),
    min_size=1,
    max_size=30,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), BATCHES),
        st.tuples(st.just("delete"), st.sampled_from(["a", "a*", "b"])),
        st.tuples(st.just("trim"), st.integers(1, 60)),
        st.tuples(st.just("pass"), st.integers(1, 4000)),
        st.tuples(st.just("store"), st.none()),
    ),
    min_size=1,
    max_size=12,
)
CONFIGS = st.sampled_from([{}, {"cap_records": 7}, {"ttl_ms": 5000}, {"cap_records": 20, "ttl_ms": 3000}])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=STEPS,
    config=CONFIGS,
    page=st.integers(1, 40),
    after=st.integers(0, 40),
    limit=st.none() | st.integers(0, 30),
    tag=st.sampled_from([None, "a", "a*", "*"]),
    node=st.sampled_from([(), ("n1",)]),
)
def test_a_table_is_what_read_gives_over_any_history(
    server: LiveServer,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[tuple[str, Any]],
    config: dict[str, Any],
    page: int,
    after: int,
    limit: int | None,
    tag: str | None,
    node: tuple[str, ...],
) -> None:
    monkeypatch.setattr(tables, "PAGE_RECORDS", page)
    with topics.connect(url) as client:
        topic = client.topic("history")
        topic.drop()
        topic.configure(**config)
        for step, given_ in steps:
            if step == "append":
                topic.append_many(given_)
            elif step == "delete":
                topic.delete(match=given_)
            elif step == "trim":
                topic.delete(before_seq=given_)
            elif step == "pass":
                server.clock.ahead_ms += given_
            else:
                server.checkpoint()
        items = list(topic.read(after, exclude_nodes=node, gaps="yield"))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            table = topic.to_arrow(after, limit=limit, tag=tag, exclude_nodes=node, gaps="warn")
    records = [item for item in items if isinstance(item, Record) and matches(tag, item.tag)][:limit]
    assert rows_of(table) == [row_of(record) for record in records]
    if limit is None and tag is None:
        assert len(told) == sum(isinstance(item, Gap) for item in items)


def matches(wanted: str | None, tag: str | None) -> bool:
    if wanted is None:
        return True
    return tag is not None and (tag.startswith(wanted[:-1]) if wanted.endswith("*") else tag == wanted)
