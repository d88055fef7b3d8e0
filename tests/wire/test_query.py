"""Query strings never cause an error."""

import pytest

from topics import limits
from topics.wire.incoming.request_head import bool_param, int_param, parse_query, unsigned


@pytest.mark.parametrize(
    ("raw", "query"),
    [
        (b"", {}),
        (b"a=1&b=2", {"a": "1", "b": "2"}),
        (b"a=1&a=2", {"a": "1"}),
        (b"a", {"a": ""}),
        (b"a=", {"a": ""}),
        (b"=x", {"": "x"}),
        (b"a=b=c", {"a": "b=c"}),
        (b"a=x+y%2Bz", {"a": "x y+z"}),
        (b"%61=%C3%A9", {"a": "é"}),
        (b"a=%zz%4", {"a": "%zz%4"}),
        (b"a=%ff", {"a": "\ufffd"}),
        (b"a=\xc3\xa9", {"a": "é"}),
        (b"&&a=1&", {"": "", "a": "1"}),
        (b"a=1;b=2", {"a": "1;b=2"}),
    ],
)
def test_form_decoding(raw: bytes, query: dict[str, str]) -> None:
    assert parse_query(raw) == query


@pytest.mark.parametrize(
    ("value", "meaning"),
    [("true", True), ("1", True), ("false", False), ("0", False), ("TRUE", None), ("yes", None), ("", None), (" 1",
     None)],
)  # fmt: skip
def test_bool_parameters(value: str, meaning: bool | None) -> None:
    for default in (True, False):
        assert bool_param({"p": value}, "p", default=default) == (default if meaning is None else meaning)
        assert bool_param({}, "p", default=default) == default


@pytest.mark.parametrize(
    ("value", "effective"),
    [("5", 5), ("0", 1), ("005", 5), ("1000", 1000), ("1001", 1000), ("9" * 30, 1000), ("9" * 5000, 1000), ("-1", 100),
     ("", 100), ("x", 100), ("1.0", 100), ("1_0", 100), (" 5", 100), ("+5", 100), ("٥", 100), ("²", 100), ("0x10",
     100)],
)  # fmt: skip
def test_integer_parameters(value: str, effective: int) -> None:
    assert int_param({"page_size": value}, "page_size", clamp=limits.PAGE_SIZE) == effective


def test_an_absent_integer_is_the_default() -> None:
    assert int_param({}, "max", clamp=limits.CLAIM_MAX) == 1
    assert unsigned(None) is None
    assert unsigned("18446744073709551616") == limits.U64_MAX
