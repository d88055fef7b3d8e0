"""Many values at once give exactly what one by one they give: texts, batches, errors."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics import limits
from topics.errors import TopicsError
from topics.model.record import RecordIn, build_batch, build_plain_batch
from topics.model.values import Event, Json, json_text, plain_texts

SCALARS = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(VALUES, max_size=6))
def test_texts_made_together_are_those_made_one_by_one(values: list[Any]) -> None:
    together = plain_texts(values)
    if together is not None:
        assert [bytes(text) for text in together] == [bytes(json_text(value)) for value in values]


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(["\n", "\r\n", '"', "null"]), min_size=1
    )
)
def test_strings_made_together_are_those_made_one_by_one(values: list[str]) -> None:
    together = plain_texts(values)
    assert together is not None
    assert [bytes(text) for text in together] == [bytes(json_text(value)) for value in values]


@pytest.mark.parametrize(
    "values",
    [
        [1, Event(2)],
        [1, Json(b"2")],
        [1, None],
        [1, float("nan")],
        [1, {"deep": [float("inf")]}],
        [1, object()],
        ["\ud800"],
        [{"a": Json(b'1},{"b":2')}],
    ],
)
def test_what_has_to_be_looked_at_is_left_to_the_slow_way(values: list[Any]) -> None:
    assert plain_texts(values) is None


def outcome(make: Any) -> Any:
    try:
        return make()
    except TopicsError as error:
        return type(error), str(error)


@pytest.mark.parametrize("node", [None, "n", "n" * (limits.NODE_BYTES_MAX + 1)])
@pytest.mark.parametrize("key", [None, "k", "k" * (limits.IDEMPOTENCY_KEY_BYTES_MAX + 1), "\ud800"])
@pytest.mark.parametrize(
    "datas", [[], [b"1"], [b"1", b'"two"'], [b"1", b'"' + b"x" * limits.RECORD_BYTES_MAX + b'"'], [b"0"] * 10_001]
)
def test_a_batch_of_data_alone_is_the_batch_of_its_records(
    datas: list[bytes], node: str | None, key: str | None
) -> None:
    texts = [msgspec.Raw(data) for data in datas]
    plain = outcome(lambda: build_plain_batch(texts, default_node=node, idempotency_key=key))
    assert plain == outcome(
        lambda: build_batch([RecordIn(text) for text in texts], default_node=node, idempotency_key=key)
    )
