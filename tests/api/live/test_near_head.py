"""The short way to records near the head gives what the long way gives, or nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.delivery.rig import Rig, bodies_of
from tests.engine.delivery.test_differential import configs, happen, history

from topics.core.reading.walk import FRESH_MAX, ReadOutcome, ReadRequest, plan_read, read_fresh

requests = st.builds(
    ReadRequest,
    from_seq=st.integers(0, 60),
    limit=st.integers(1, 20),
    budget_bytes=st.sampled_from([1, 25, 60, 262_144]),
    nodes=st.sampled_from([None, frozenset([b"me"])]),
    epoch=st.sampled_from([None, None, 1, 7]),
    head_limit=st.sampled_from([None, None, 5]),
)


def told(outcome: ReadOutcome) -> tuple[Any, ...]:
    return bodies_of(outcome), *(getattr(outcome, name) for name in outcome._fields if name != "runs")


@settings(max_examples=100)
@given(configs, history, st.lists(requests, min_size=1, max_size=8))
def test_the_short_way_agrees_with_the_walk(
    config: dict[str, Any], script: list[tuple[str, Any]], asked: list[ReadRequest]
) -> None:
    rig = Rig(segment_max_events=4)
    rig.put("a", **config)
    topic, state, clock = rig.topic("a"), rig.engine.state, rig.engine.context.clock
    for number, (action, what) in enumerate(script):
        happen(rig, number, action, what)
        rig.diff("a", 0)  # floors that are due are settled before anyone reads
        for request in asked:
            fresh = read_fresh(topic, request, state.recent)
            if fresh is not None:
                walk = plan_read(topic, request, state.recent, now=clock.now_ms())
                assert walk.need() is None
                assert told(fresh) == told(walk.result())


@pytest.mark.parametrize("count", [1, FRESH_MAX])
def test_records_just_written_are_found_the_short_way(count: int) -> None:
    rig = Rig()
    rig.write("a", *range(30))
    fresh = read_fresh(rig.topic("a"), ReadRequest(from_seq=30 - count), rig.engine.state.recent)
    assert fresh is not None
    assert [body["data"] for body in bodies_of(fresh)] == list(range(30 - count, 30))


def test_a_reader_too_far_behind_takes_the_long_way() -> None:
    rig = Rig()
    rig.write("a", *range(30))
    assert read_fresh(rig.topic("a"), ReadRequest(from_seq=29 - FRESH_MAX), rig.engine.state.recent) is None
