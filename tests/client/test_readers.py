"""Named cursors, reads by tag and time, expected versions: one contract for every door."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pytest

from topics import DataLoss, Event, Json
from topics.client import Client
from topics.errors import (
    CursorFenced,
    CursorForeign,
    CursorNotFound,
    InvalidRequest,
    RecordNotFound,
    TopicNotFound,
    TopicsError,
    VersionConflict,
)

pytestmark = pytest.mark.timeout(30)


def filled(door: Client, name: str, count: int = 6) -> Any:
    """A topic whose records are numbered from 0 and tagged a, b, a, b, ..."""
    topic = door.topic(name)
    topic.append_many([Event(at, tag="ab"[at % 2]) for at in range(count)])
    return topic


# --- named cursors ---------------------------------------------------------------------------------------------------


def test_a_cursor_is_made_by_its_first_commit_and_only_moves_forward(door: Client, name: str) -> None:
    cursor = filled(door, name).cursor("billing")
    with pytest.raises(CursorNotFound, match="billing"):
        cursor.get()
    made = cursor.commit(4, meta={"by": "test"})
    assert (made.seq, made.created, made.moved, made.lag.records) == (4, True, True, 2)
    back = cursor.commit(2)
    assert (back.seq, back.moved) == (4, False)
    assert bytes(cursor.get().meta) == b'{"by":"test"}'


def test_a_record_is_committed_by_handing_it_over(door: Client, name: str) -> None:
    topic = filled(door, name)
    third = list(topic.read())[2]
    assert topic.cursor("c").commit(third, sync=True).position == third.position


def test_a_cursor_is_reset_to_start_end_seq_position_and_time(door: Client, name: str) -> None:
    topic = filled(door, name)
    cursor, records = topic.cursor("c"), list(topic.read())
    assert cursor.reset("end").seq == 6
    assert cursor.reset("start").seq == 0
    assert cursor.reset(3).seq == 3
    assert cursor.reset(records[1]).seq == 2
    assert cursor.reset(from_ts=records[0].ts).seq == 0
    assert cursor.reset(from_ts=datetime.now(UTC).replace(year=2990)).seq == 6
    with pytest.raises(InvalidRequest, match="position or to a time"):
        cursor.reset()
    with pytest.raises(InvalidRequest, match="without a zone"):
        cursor.reset(from_ts=datetime(2026, 1, 1))
    with pytest.raises(InvalidRequest, match="whole milliseconds since 1970"):
        cursor.reset(from_ts=1.5)


def test_a_commit_that_does_not_fit_moves_nothing(door: Client, name: str) -> None:
    topic, other = filled(door, name), filled(door, name + ".other")
    cursor = topic.cursor("c")
    cursor.commit(1)
    (strange,) = other.read(limit=1)
    for position in (7, strange):
        with pytest.raises(CursorForeign, match="none of topic"):
            cursor.commit(position)
    with pytest.raises(InvalidRequest, match="not a position"):
        cursor.commit("no position")
    with pytest.raises(InvalidRequest):
        topic.cursor("a b").commit(1)
    assert cursor.get().seq == 1
    with pytest.raises(CursorNotFound):
        next(iter(topic.read(cursor="elsewhere")))


def test_who_takes_a_cursor_over_is_the_only_one_to_commit(door: Client, name: str) -> None:
    cursor = filled(door, name).cursor("c")
    first = cursor.take_over("first")
    second = cursor.take_over("second")
    assert (first.fence, second.fence, second.owner) == (1, 2, "second")
    for fence in (None, first.fence):
        with pytest.raises(CursorFenced, match="second") as refused:
            cursor.commit(1, fence=fence)
        assert dict(refused.value.detail or {})["fence"] == 2
    assert cursor.commit(1, fence=second.fence).seq == 1


def test_a_cursor_holds_back_retention_until_it_is_let_go(door: Client, name: str) -> None:
    topic = door.topic(name, cap_records=2)
    topic.append(0)
    cursor = topic.cursor("c")
    cursor.reset("start")
    assert cursor.hold(records=4).hold == {"records": 4}
    topic.append_many([1, 2, 3])
    assert topic.state().count == 4
    assert cursor.hold().hold is None
    assert topic.state().count == 2


def test_cursors_are_listed_with_their_lag_and_forgotten(door: Client, name: str) -> None:
    topic = filled(door, name)
    topic.cursor("b").commit(6)
    topic.cursor("a").commit(1)
    shown = [(state.cursor, state.kind, state.lag.records) for state in topic.cursors()]
    assert shown == [("a", "cursor", 5), ("b", "cursor", 0)]
    assert [state.cursor for state in door.cursors(name)] == ["a", "b"]
    assert [topic.cursor("a").delete(), topic.cursor("a").delete()] == [True, False]
    assert [state.cursor for state in topic.cursors()] == ["b"]


# --- where a read begins ---------------------------------------------------------------------------------------------


def test_reads_keep_one_tag_or_a_prefix(door: Client, name: str) -> None:
    topic = filled(door, name)
    topic.append("c", tag="ac")
    assert [record.value for record in topic.read(tag="a")] == [0, 2, 4]
    assert [record.value for record in topic.read(tag="a*", limit=4)] == [0, 2, 4, "c"]
    assert [record.value for record in islice(topic.follow(2, tag="a*"), 3)] == [2, 4, "c"]
    page = topic.page(tag="b", limit=2)
    assert [record.value for record in page.records] == [1, 3]
    with pytest.raises(InvalidRequest, match="empty"):
        list(topic.read(tag=""))


def test_reads_begin_at_a_time(door: Client, name: str) -> None:
    topic = door.topic(name)
    topic.append("before")
    while time.time_ns() // 1_000_000 <= topic.page().records[0].ts:
        pass
    topic.append("after")
    border = topic.page().records[1].ts
    assert [record.value for record in topic.read(from_ts=border)] == ["after"]
    assert [record.value for record in topic.read(from_ts=datetime.fromtimestamp(border / 1000, UTC))] == ["after"]
    items: Any = topic.follow(from_ts=border)
    assert next(items).value == "after"
    topic.append("later")
    assert next(items).value == "later"
    items.close()
    assert list(topic.read(from_ts=border + 10**9)) == []


def test_a_read_begins_at_one_place(door: Client, name: str) -> None:
    topic = filled(door, name)
    topic.cursor("c").commit(4)
    assert [record.value for record in topic.read(cursor="c")] == [4, 5]
    assert [record.value for record in topic.read(cursor="c", tag="b")] == [5]
    with pytest.raises(InvalidRequest, match="begins at one of"):
        list(topic.read(1, from_ts=5))


def test_what_a_cursor_has_not_seen_and_is_gone_is_lost(door: Client, name: str) -> None:
    topic = door.topic(name, cap_records=2)
    topic.append(0)
    topic.cursor("c").reset("start")
    topic.append_many([1, 2, 3])
    with pytest.raises(DataLoss):
        list(topic.read(cursor="c"))
    with pytest.raises(DataLoss):
        next(topic.follow(cursor="c"))


def test_one_record_is_had_by_its_seq_and_the_newest_by_its_tag(door: Client, name: str) -> None:
    topic = filled(door, name)
    third = topic.get(3)
    assert (third.value, third.tag, topic.get(third).seq) == (2, "a", 3)
    assert topic.get(third.position).position == third.position
    topic.append(Json(b'"\\ud800"'), tag="odd")
    assert bytes(topic.newest(tag="odd").data) == b'"\\ud800"'
    assert (topic.newest().seq, topic.newest(tag="a").value, topic.newest(tag="no*")) == (7, 4, None)
    topic.delete(match="b")
    for seq, why in ((2, "deleted"), (9, "not_yet")):
        with pytest.raises(RecordNotFound) as refused:
            topic.get(seq)
        assert dict(refused.value.detail or {})["why"] == why
    for wrong in (0, -1, "x"):
        with pytest.raises(InvalidRequest):
            topic.get(wrong)
    with pytest.raises(InvalidRequest, match="empty"):
        topic.newest(tag="")


# --- follow with a cursor --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commit", ["batch", "record"])
def test_a_follower_goes_on_behind_what_it_has_processed(door: Client, name: str, commit: Any) -> None:
    topic = filled(door, name)
    items = topic.follow(cursor="billing", commit=commit)
    assert [next(items).value for _ in range(3)] == [0, 1, 2]
    items.close()
    again = topic.follow(cursor="billing", commit=commit)
    # A batch that was not finished comes again; record by record, only the one that was being worked on does.
    assert next(again).value == (0 if commit == "batch" else 2)
    again.close()


def test_a_processed_batch_is_committed_before_the_follower_waits(door: Client, name: str) -> None:
    topic = filled(door, name)
    items = topic.follow(cursor="billing")
    assert [record.value for record in islice(items, 6)] == list(range(6))
    topic.append("next")
    assert next(items).value == "next"
    assert topic.cursor("billing").get().seq == 6
    items.close()


def test_a_cursor_that_does_not_exist_begins_where_the_follower_says(door: Client, name: str) -> None:
    topic = filled(door, name)
    items = topic.follow(4, cursor="new")
    assert next(items).value == 4
    items.close()
    with pytest.raises(CursorNotFound):
        topic.cursor("new").get()


def test_a_follower_passes_over_what_it_does_not_want(door: Client, name: str) -> None:
    topic = filled(door, name)
    items = topic.follow(cursor="c", tag="a", commit="record")
    assert [next(items).value for _ in range(3)] == [0, 2, 4]
    topic.append("last", tag="a")
    assert next(items).value == "last"
    items.close()
    assert topic.cursor("c").get().seq >= 5


def test_a_follower_that_was_taken_over_is_told(door: Client, name: str) -> None:
    topic = filled(door, name)
    first = topic.follow(cursor="c", owner="first", commit="record")
    assert next(first).value == 0
    second = topic.follow(cursor="c", owner="second", commit="record")
    assert next(second).value == 0
    with pytest.raises(CursorFenced, match="second"):
        next(first)
    assert next(second).value == 1
    second.close()


@pytest.mark.parametrize("fields", [{"commit": "never"}, {"owner": "me"}, {"tag": ""}, {"from_ts": -1}])
def test_a_follower_is_told_what_it_cannot_ask_for(door: Client, name: str, fields: dict[str, Any]) -> None:
    topic = filled(door, name)
    with pytest.raises(InvalidRequest):
        next(topic.follow(**fields))
    assert topic.cursors() == []


def test_several_topics_are_followed_at_once(door: Client, name: str) -> None:
    one, two = filled(door, name + ".1", 2), filled(door, name + ".2", 2)
    items: Any = door.follow([one.name, two.name], cursor="both", commit="record")
    assert sorted((topic, record.value) for topic, record in islice(items, 4)) == [
        (one.name, 0), (one.name, 1), (two.name, 0), (two.name, 1),
    ]  # fmt: skip
    for topic in (one, two, one):
        topic.append("more")
        found, record = next(items)
        assert (found, record.value) == (topic.name, "more")
    items.close()
    assert [(state.topic, state.seq) for state in door.cursors(name)] == [(one.name, 3), (two.name, 3)]
    behind: Any = door.follow({one.name: 3, two.name: 2}, tag="*")
    one.append("tagged", tag="x")
    assert next(behind)[1].value == "tagged"
    behind.close()
    wrong: Any
    for wrong in (one.name, []):
        with pytest.raises(InvalidRequest):
            next(door.follow(wrong))
    with pytest.raises(TopicNotFound):
        next(door.follow([one.name, name + ".absent"]))


# --- expected versions -----------------------------------------------------------------------------------------------


def test_a_write_states_the_head_it_expects(door: Client, name: str) -> None:
    topic = door.topic(name)
    first = topic.append(1, if_head=0)
    second = topic.append(2, if_head=first)
    with pytest.raises(VersionConflict, match="is 2, not 1") as refused:
        topic.append(3, if_head=1)
    assert refused.value.detail == {"topic": name, "head_seq": 2}
    assert topic.append_many([3, 4], if_head=second.position).last_seq == 4
    with pytest.raises(VersionConflict):
        door.topic(name + ".absent").append(1, if_head=1)
    with pytest.raises(TopicNotFound):
        door.topic(name + ".absent").state()


def test_each_tag_is_guarded_by_itself(door: Client, name: str) -> None:
    topic = door.topic(name)
    opened = topic.append("opened", tag="order:1", if_tag_seq=0)
    topic.append("opened", tag="order:2", if_tag_seq=0)
    topic.append("paid", tag="order:1", if_tag_seq=opened.last_seq)
    with pytest.raises(VersionConflict) as refused:
        topic.append("cancelled", tag="order:1", if_tag_seq=opened.last_seq)
    assert refused.value.detail == {"topic": name, "tag": "order:1", "expected": 1, "actual": 3}
    topic.append_many([Event("a", tag="order:1")], if_tag_seq={"order:1": 3, "order:2": 2})
    assert topic.state().head_seq == 4


def test_a_retry_of_a_write_that_succeeded_gets_its_first_answer(door: Client, name: str) -> None:
    topic = door.topic(name)
    first = topic.append(1, key="k", if_head=0)
    again = topic.append(1, key="k", if_head=0)
    assert (again.deduped, again.last_seq) == (True, first.last_seq)


@pytest.mark.parametrize(
    "fields", [{"if_head": "x"}, {"if_head": -1}, {"if_tag_seq": 1}, {"if_tag_seq": {}}, {"if_tag_seq": {"a": -1}}]
)
def test_a_bad_expectation_is_refused(door: Client, name: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        door.topic(name).append(1, **fields)
    with pytest.raises(TopicsError):
        door.topic(name).state()
