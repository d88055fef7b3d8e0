"""Topics: create, replace config, delete, epochs, priority, descriptions, lists."""

from __future__ import annotations

import pytest
from tests.core.rig import Rig, records

from topics.core import create_drop as lifecycle
from topics.core.apply import apply
from topics.core.effects import OpResult
from topics.core.state import State
from topics.engine.delivery import ready as priority
from topics.engine.reading.queries import names_from, report, summary
from topics.errors import InvalidRequest, Throttled, TopicExistsIncompatible, TopicNotEmpty, TopicNotFound
from topics.model.config import TopicConfig
from topics.model.ops import ConfigUpdate, Delete, Evict, TopicCreate, TopicDelete


def test_an_identical_config_needs_no_op() -> None:
    rig = Rig()
    rig.create("t", TopicConfig(ttl_ms=5))
    assert lifecycle.decide_put(rig.state, "t", TopicConfig(ttl_ms=5), now=rig.now) == ([], False)


def test_a_type_cannot_change() -> None:
    rig = Rig()
    rig.create("t")
    with pytest.raises(TopicExistsIncompatible):
        lifecycle.decide_put(rig.state, "t", TopicConfig(type="queue"), now=rig.now)


@pytest.mark.parametrize("name", ["", "-a", "a/b", "a\n", "x" * 256])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        lifecycle.decide_put(State(), name, TopicConfig(), now=1)


@pytest.mark.parametrize(
    "config",
    [TopicConfig(dead_letter="no/name"), TopicConfig(type="queue", dead_letter="t"), TopicConfig(dead_letter="")],
)
def test_a_bad_dead_letter_is_refused(config: TopicConfig) -> None:
    with pytest.raises(InvalidRequest):
        lifecycle.decide_put(State(), "t", config, now=1)


def test_a_log_may_name_itself_as_dead_letter_without_effect() -> None:
    ops, created = lifecycle.decide_put(State(), "t", TopicConfig(dead_letter="t"), now=1)
    assert created
    assert len(ops) == 1


def test_the_number_of_topics_is_capped_and_existing_ones_are_not_refused() -> None:
    rig = Rig()
    rig.create("t")
    with pytest.raises(Throttled):
        lifecycle.decide_put(rig.state, "u", TopicConfig(), now=1, topics_max=1)
    assert lifecycle.decide_put(rig.state, "t", TopicConfig(ttl_ms=1), now=1, topics_max=1)[1] is False


def test_a_change_of_retention_logs_the_floors_in_front_of_it() -> None:
    rig = Rig()
    topic = rig.create("t", TopicConfig(cap_records=2))
    rig.put("t", records("1", "2", "3"))
    ops = lifecycle.decide_config(topic, TopicConfig(), now=rig.now)
    assert [type(op) for op in ops] == [Evict, ConfigUpdate]
    assert isinstance(ops[0], Evict)
    assert (ops[0].cap_lost, ops[0].evict_floor, ops[0].earliest_seq) == (1, 2, 2)
    ops = lifecycle.decide_config(topic, TopicConfig(cap_records=2, priority=4), now=rig.now)
    assert [type(op) for op in ops] == [ConfigUpdate], "nothing about retention changes here"


def test_a_new_instance_starts_empty_with_a_greater_epoch_and_a_new_id() -> None:
    rig = Rig()
    first = rig.create("t")
    rig.put("t", records("1"))
    rig.drop("t")
    with pytest.raises(TopicNotFound):
        rig.topic("t")
    second = rig.create("t")
    assert (second.head, second.earliest_seq, second.count) == (0, 1, 0)
    assert second.epoch > first.epoch
    assert second.id > first.id
    assert rig.state.total_bytes == 0


def test_a_topic_with_records_is_not_dropped_if_it_should_be_empty() -> None:
    rig = Rig()
    rig.create("t")
    rig.put("t", records("1"))
    with pytest.raises(TopicNotEmpty):
        rig.drop("t", if_empty=True)
    rig.delete("t", before_seq=2)
    rig.drop("t", if_empty=True)


def test_ops_of_a_topic_that_is_gone_are_ignored() -> None:
    assert apply(State(), Delete(topic_id=9, seqs=(1,), reason="api")).fate is OpResult.IGNORED
    state = State()
    assert apply(state, TopicDelete(topic_id=9, name="t", epoch=9)).fate is OpResult.DUPLICATE
    assert state.next_topic_id == 10, "its id is never handed out again"


def create(topic_id: int) -> TopicCreate:
    return TopicCreate(topic_id, "t", topic_id, TopicConfig(), 1)


@pytest.mark.parametrize("order", [(create(1), create(2)), (create(2), create(1))])
def test_of_one_name_the_highest_living_id_is_the_topic(order: tuple[TopicCreate, TopicCreate]) -> None:
    """The groups of a log are replayed one after the other: a deletion may come late."""
    state = State()
    for op in order:
        apply(state, op)
    assert (state.topic("t").id, list(state.shadowed)) == (2, [1])
    apply(state, TopicDelete(topic_id=1, name="t", epoch=1))
    assert (state.topic("t").id, list(state.shadowed), list(state.by_id)) == (2, [], [2])


def test_if_the_newer_instance_goes_first_the_older_one_is_the_topic_until_it_goes_too() -> None:
    state = State()
    for op in (create(1), create(2), TopicDelete(topic_id=2, name="t", epoch=2)):
        apply(state, op)
    assert state.topic("t").id == 1
    apply(state, TopicDelete(topic_id=1, name="t", epoch=1))
    assert not state.topics
    assert apply(state, create(2)).fate is OpResult.APPLIED, "whether it may come back is for replay to know"


# --- priority --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("idle_s", "expected"), [(0, 500), (15, 354), (30, 250), (60, 125), (120, 31), (299.999, 0), (300, 0), (9999, 0)]
)
def test_recency_halves_every_thirty_seconds(idle_s: float, expected: int) -> None:
    rig = Rig()
    topic = rig.create("t")
    topic.touch(rig.now, read=True)
    assert priority.effective_priority(topic, rig.now + int(idle_s * 1000)) == expected


@pytest.mark.parametrize(("given", "effective"), [(5, 5), (-7, -7), (5000, 1000), (-5000, -1000), (0, 0)])
def test_a_manual_priority_replaces_recency(given: int, effective: int) -> None:
    rig = Rig()
    topic = rig.create("t", TopicConfig(priority=given))
    topic.touch(rig.now, read=True)
    assert priority.effective_priority(topic, rig.now) == effective


def test_without_auto_priority_or_consumption_it_is_zero() -> None:
    rig = Rig()
    assert priority.effective_priority(rig.create("t"), rig.now) == 0
    topic = rig.create("u", TopicConfig(auto_priority=False))
    topic.touch(rig.now, read=True)
    assert priority.effective_priority(topic, rig.now) == 0


# --- descriptions ----------------------------------------------------------------------------------------------------


def test_a_fresh_topic_is_described_as_the_contract_says() -> None:
    rig = Rig()
    shown = report(rig.create("t"), now=rig.now)
    assert (shown.head_seq, shown.earliest_seq, shown.next_seq, shown.count, shown.bytes) == (0, 1, 1, 0, 0)
    assert (shown.last_write_ts, shown.last_read_ts, shown.type) == (None, None, "log")


def test_a_summary_shows_the_settled_state() -> None:
    rig = Rig()
    topic = rig.create("t", TopicConfig(durability="fsync", durable=True))
    rig.put("t", records("1", "22"))
    shown = summary(topic, now=rig.now)
    assert (shown.head_seq, shown.earliest_seq, shown.count, shown.bytes, shown.durable) == (2, 1, 2, 3, True)


def test_names_are_listed_in_order_by_prefix_behind_a_cursor() -> None:
    rig = Rig()
    for name in ("b", "a", "a:2", "a:1", "B", "ab"):
        rig.create(name)
    assert list(names_from(rig.state)) == ["B", "a", "a:1", "a:2", "ab", "b"]
    assert list(names_from(rig.state, prefix="a")) == ["a", "a:1", "a:2", "ab"]
    assert list(names_from(rig.state, prefix="a", after="a:1")) == ["a:2", "ab"]
    assert list(names_from(rig.state, prefix="b", after="a")) == ["b"]
    assert list(names_from(rig.state, after="zz")) == []
