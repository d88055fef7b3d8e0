"""Pages of the embedded library: records are made when they are looked at, and are what was written."""

from __future__ import annotations

from pathlib import Path

import topics
from topics.embedded.views import Records
from topics.model.results import Record


def test_a_page_behaves_like_a_list_of_its_records(tmp_path: Path) -> None:
    events = [
        topics.Event({"n": 1}),
        topics.Event([2], tag="t"),
        topics.Event("3", node="me", tag=""),
        topics.Event({"m": {"m": 4}, "d": ',"m":1'}, meta={"k": "v"}),
        topics.Event(5.5, meta={"m": 1}),
    ]
    with topics.open(str(tmp_path), wal_shards=1) as database:
        topic = database.topic("t")
        topic.append_many(events)
        page = topic.page(0, limit=4)
        assert isinstance(page.records, Records)
        assert len(page.records) == 4
        assert [record.value for record in page.records] == [event.data for event in events[:4]]
        assert [(record.tag, record.node) for record in page.records] == [
            (event.tag, event.node) for event in events[:4]
        ]
        assert page.records[3].headers == {"k": "v"}
        assert page.records[-1].seq == 4
        assert [record.seq for record in page.records[1:3]] == [2, 3]
        assert page.records == list(page.records) == topic.page(0, limit=4).records
        assert page.records != []
        last = list(topic.read())[4]
        assert isinstance(last, Record)
        assert last.headers == {"m": 1}
        assert topic.page(5).records == []


def test_records_that_are_looked_at_late_are_those_that_were_read(tmp_path: Path) -> None:
    with topics.open(str(tmp_path), wal_shards=1) as database:
        topic = database.topic("t")
        topic.append_many(range(1, 101))
        page = topic.page(0, limit=100)
        topic.delete(before_seq=101)
        topic.append_many(range(1000))
        seen: list[Record] = list(page.records)
        assert [record.value for record in seen] == list(range(1, 101))
