"""Epochs are unique; positions of a topic, of a copy of it and of another one are told apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.core.rig import Rig, records

from topics.core.apply import apply
from topics.core.lineage import ANCESTORS_MAX, decide_fork, epoch_of, is_foreign, new_epoch
from topics.core.state import State
from topics.model.ops import HeadMark

NOW = 1_755_000_000_000


def test_an_epoch_is_exact_in_53_bits_and_holds_the_time() -> None:
    epoch = new_epoch(State(), now=NOW, chance=2**11 - 1)
    assert epoch < 2**53
    assert epoch >> 11 == NOW


@given(st.lists(st.tuples(st.integers(0, 2**42), st.integers(0, 2**11 - 1))))
def test_epochs_of_a_directory_only_grow_whatever_the_clock_does(drawn: list[tuple[int, int]]) -> None:
    state = State()
    given_out = [new_epoch(state, now=now, chance=chance) for now, chance in drawn]
    assert given_out == sorted(set(given_out))


def test_two_directories_that_make_a_topic_at_the_same_moment_differ_by_chance() -> None:
    assert new_epoch(State(), now=NOW, chance=1) != new_epoch(State(), now=NOW, chance=2)


class Log:
    """A topic that is written and copied."""

    def __init__(self) -> None:
        self.rig = Rig(now=NOW)
        self.topic = self.rig.create("t")

    def append(self, count: int) -> None:
        self.rig.put("t", records(*[b"1"] * count))

    def fork(self) -> HeadMark:
        mark = decide_fork(self.rig.state, self.topic, now=NOW, chance=0)
        apply(self.rig.state, mark)
        return mark


def test_a_copy_shares_what_was_there_and_nothing_after() -> None:
    log = Log()
    log.append(5)
    original = log.topic.epoch
    log.fork()
    log.append(5)
    topic = log.topic
    assert topic.epoch != original
    assert [epoch_of(topic, seq) for seq in (0, 5, 6, 10)] == [original, original, topic.epoch, topic.epoch]
    assert [is_foreign(topic, seq, original) for seq in (0, 5, 6, 10)] == [False, False, True, True]
    assert [is_foreign(topic, seq, topic.epoch) for seq in (0, 5, 10, 11)] == [False, False, False, True]
    assert [is_foreign(topic, seq, None) for seq in (10, 11)] == [False, True]
    assert is_foreign(topic, 1, original - 1)


def test_a_fork_that_is_replayed_changes_nothing() -> None:
    log = Log()
    log.append(5)
    mark = log.fork()
    before = log.topic.epoch, log.topic.ancestors
    log.append(3)
    apply(log.rig.state, mark)
    assert (log.topic.epoch, log.topic.ancestors) == before


def test_a_copy_without_a_record_of_its_own_leaves_no_ancestor() -> None:
    log = Log()
    log.append(5)
    original = log.topic.epoch
    for _ in range(100):
        log.fork()
    assert log.topic.ancestors == ((original, 5),)
    assert not is_foreign(log.topic, 5, original)


def test_ancestors_are_bounded_and_the_oldest_is_foreign_then() -> None:
    log = Log()
    epochs = []
    for _ in range(ANCESTORS_MAX + 1):
        log.append(1)
        epochs.append(log.topic.epoch)
        log.fork()
    assert len(log.topic.ancestors) == ANCESTORS_MAX
    assert is_foreign(log.topic, 1, epochs[0])
    assert not is_foreign(log.topic, 1, epochs[1])
