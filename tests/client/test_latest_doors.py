"""The newest record of each tag through every door (`docs/spec/readers.md#sec-7`)."""

from __future__ import annotations

import pytest

from topics import Event, Json
from topics.client import Client
from topics.errors import TopicNotFound

pytestmark = pytest.mark.timeout(60)


def test_latest_is_the_same_through_every_door(door: Client, name: str) -> None:
    topic = door.topic(name, compact="tag", compact_grace_ms=60_000)
    topic.append_many([Event(at, tag=f"k{at % 1200:04}") for at in range(3000)])
    topic.append_many([Event(Json('"\\ud800"'), tag="a lone surrogate"), Event(None, tag="k0007"), Event("no tag")])
    rows = list(topic.latest("k"))
    wanted = {f"k{at % 1200:04}": at for at in range(3000)}
    del wanted["k0007"]
    assert [row.tag for row in rows] == sorted(wanted)  # more than a page
    assert {row.tag: row.value for row in rows} == wanted
    assert [bytes(row.data) for row in topic.latest("a")] == [b'"\\ud800"']  # type: ignore[arg-type]
    page = topic.latest_page(limit=2)
    assert ([row.tag for row in page.records], page.next, page.head_seq) == (
        ["a lone surrogate", "k0000"],
        "k0000",
        3003,
    )
    assert list(topic.read(after=page.position)) == []
    assert topic.state().config.compact == "tag"


def test_a_topic_that_is_not_there_has_no_table(door: Client, name: str) -> None:
    with pytest.raises(TopicNotFound):
        list(door.topic(name).latest())
