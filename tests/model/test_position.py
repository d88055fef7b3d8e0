"""A position is one printable token, and nothing else is taken for one."""

import re
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import InvalidRequest
from topics.model.position import Position, checked_position, parse_token, token
from topics.model.results import Record

U64 = st.integers(0, 2**64 - 1)


@given(U64, U64)
def test_a_token_comes_back_and_needs_no_escape(seq: int, epoch: int) -> None:
    text = token(seq, epoch)
    assert parse_token(text) == Position(seq, epoch) == checked_position(text)
    assert str(Position(seq, epoch)) == text
    assert quote(text, safe="") == text
    assert urlencode({"a": text}) == f"a={text}"


@pytest.mark.parametrize(
    "text",
    [
        "", "12", "-e1", "12-e", "12-1", "12-eF", "012-e1", "12-e01", "12-e1 ", " 12-e1", "12-e1\n", "+1-e1", "1.0-e1",
        "18446744073709551616-e1", "1-e10000000000000000", "\u0661-e1", "12-e1-e1", "12@e1", "x" * 5000,
    ],
)  # fmt: skip
def test_anything_else_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        checked_position(text)
    assert re.fullmatch(r".{1,200}is not a position; one looks like 12-e1a2b3c4d5e6f7", refused.value.message)


@pytest.mark.parametrize("given", [True, -1, 2**64, 1.0, None, b"1-e1", [1], object()])
def test_what_is_neither_a_seq_nor_has_a_position_is_refused(given: Any) -> None:
    with pytest.raises(InvalidRequest):
        checked_position(given)


def test_a_record_has_a_position_unless_its_server_did_not_say() -> None:
    record = Record(seq=7, ts=1, data=msgspec.Raw(b"1"), epoch=255)
    assert record.position == "7-eff"
    assert checked_position(record) == Position(7, 255)
    assert checked_position(msgspec.structs.replace(record, epoch=0)) == Position(7)
    assert checked_position(7) == Position(7)
