"""The oracle of the power cuts notices each kind of broken promise: an oracle that cannot fail proves nothing."""

from __future__ import annotations

from typing import Any

import pytest
from tests.powercut.oracle import Oracle, Shown, Violation
from tests.powercut.topics_under_load import TOPICS

TOKENS = {1: "x.1:a", 2: "x.2:b", 3: "x.3:a"}


def told(*events: list[Any], name: str = "fsync") -> Oracle:
    oracle = Oracle()
    written: list[list[Any]] = [["try", name, list(TOKENS.values())], ["ack", name, 1, list(TOKENS.values())]]
    for event in [*written, *events]:
        oracle.hear(event, late=False)
    return oracle


def shown(name: str = "fsync", **found: Any) -> dict[str, Shown]:
    whole = {"records": TOKENS, "gaps": [], "head": 3, "earliest": 1, "count": 3}
    others = {other: Shown({}, [], 0, 1, 0) for other in TOPICS}
    if TOPICS[name].fed_by:
        others[TOPICS[name].fed_by] = Shown({}, [], 0, 1, 0)
    return {**others, name: Shown(**{**whole, **found})}


def test_what_is_there_as_it_was_told_is_no_violation() -> None:
    told().judge(shown(), killed_only=True)


def test_records_of_a_weaker_class_may_go_if_that_is_announced() -> None:
    gone: dict[str, Any] = {"records": {1: TOKENS[1]}, "gaps": [(2, 9, "restart")], "head": 9, "count": 1}
    told(name="disk").judge(shown("disk", **gone), killed_only=False)


BROKEN: dict[str, tuple[str, list[list[Any]], dict[str, Any], str]] = {
    "missing in silence": ("disk", [], {"records": {1: TOKENS[1]}, "count": 1}, "missing in silence"),
    "fsync lost": (
        "fsync",
        [],
        {"records": {1: TOKENS[1], 2: TOKENS[2]}, "gaps": [(3, 3, "restart")], "count": 2},
        "is lost",
    ),
    "another record": ("fsync", [], {"records": {**TOKENS, 3: TOKENS[1]}}, "there twice|was .* now"),
    "invented": ("fsync", [], {"records": {**TOKENS, 4: "y:a"}, "head": 4, "count": 4}, "nobody wrote"),
    "head fell": ("disk", [], {"records": {1: TOKENS[1]}, "gaps": [(2, 3, "restart")], "head": 1, "count": 1}, "head"),
    "count": ("fsync", [], {"count": 2}, "count 2"),
    "earliest": ("fsync", [], {"earliest": 2}, "earliest_seq 2"),
    "floor fell": ("fsync", [["read", "fsync", [], 2]], {}, "earliest_seq fell"),
    "a gap that holds records": ("disk", [], {"gaps": [(2, 2, "restart")]}, "announced as gone"),
    "a delete undone": (
        "fsync",
        [["deleting", "fsync", {"match": "a"}], ["deleted", "fsync", {"match": "a"}]],
        {},
        "was deleted",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_each_kind_of_broken_promise_is_noticed(what: str) -> None:
    name, events, found, sentence = BROKEN[what]
    with pytest.raises(Violation, match=sentence):
        told(*events, name=name).judge(shown(name, **found), killed_only=False)


def test_a_gap_that_a_kill_opens_is_noticed() -> None:
    with pytest.raises(Violation, match="a kill opened"):
        told(name="disk").judge(shown("disk", head=9, gaps=[(4, 9, "restart")]), killed_only=True)


def test_a_seq_that_is_used_again_is_noticed_when_it_is_acked() -> None:
    oracle = told()
    with pytest.raises(Violation, match="seq 3 was"):
        oracle.hear(["ack", "fsync", 3, ["z:a"]], late=False)


def test_a_record_in_a_range_that_was_announced_as_lost_is_noticed() -> None:
    oracle = told(name="disk")
    oracle.judge(shown("disk", head=9, gaps=[(4, 9, "restart")]), killed_only=False)
    with pytest.raises(Violation, match="announced as lost"):
        oracle.hear(["ack", "disk", 5, ["z:a"]], late=False)


def test_a_record_of_a_source_without_a_copy_is_noticed() -> None:
    oracle = told(name="source")
    with pytest.raises(Violation, match="have no copy"):
        oracle.judge(shown("source"), killed_only=False)
