"""Strict JSON: every rule of `docs/spec/http-api.md#sec-4-3` and `docs/spec/http-api.md#sec-4-4` as raw bytes, and
against an oracle of our own."""

import json
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.wire.rfc8259 import NotJson, parse, takes_write

from topics.errors import InvalidRequest
from topics.wire.incoming.json import is_too_deep
from topics.wire.incoming.requests import (
    decode_config,
    decode_diff,
    decode_write,
)
from topics.wire.incoming.schedule_requests import decode_schedule


def payloads(body: bytes) -> list[tuple[bytes, bytes | None]] | None:
    """As the oracle's `takes_write`, by the product."""
    try:
        records = decode_write(body).records
    except InvalidRequest:
        return None
    return [(bytes(one.data), meta_of(one.meta)) for one in records]


def meta_of(meta: msgspec.Raw | msgspec.UnsetType) -> bytes | None:
    return None if isinstance(meta, msgspec.UnsetType) or bytes(meta) == b"null" else bytes(meta)


def write(data: bytes) -> bytes:
    return b'{"records":[{"data":%b}]}' % data


# --- syntax ----------------------------------------------------------------------------------------------------------

VALID = [
    b"null", b"true", b"false", b"0", b"-0", b"-0.0", b"1e5", b"1E+5", b"1.50e-0", b"9" * 5000, b"1e99999", b'""',
    b'"a"',
    b'"\\u0000"', b'"\\"\\\\\\/\\b\\f\\n\\r\\t"', b'"\xc3\xa9"', b'"\xf0\x9f\x98\x80"', b'"\\ud83d\\ude00"', b'"\x7f"',
    b"[]", b"{}", b"[ 1 ,\t2\r\n]", b'{"a" : 1 , "a":2}', b'{"":{"":[]}}', b'"\xe2\x80\xa8"', b'"\xef\xbb\xbf"',
    b'"\\ud800"', b'"\\udfff"', b'"\\uDC00\\uD800"', b'"\\ud800\\ud83d\\ude00"', b'{"\\ud800":1}', b'["a","\\uD9ab"]',
]  # fmt: skip
INVALID = [
    b"", b"NaN", b"Infinity", b"-Infinity", b"nan", b"tru", b"True", b"nul", b"None", b"undefined", b"+1", b".5", b"1.",
    b"01", b"-01", b"00", b"-", b"1e", b"1e+", b"0x10", b"1_000", b"1 2", b"--1", b"1.0.0", b"1e5e5", b"'a'", b"a",
    b'"',
    b'"a', b'"\\', b'"\\x41"', b'"\\u12"', b'"\\u123g"', b'"\\U0041"', b'"\\\n"', b'"\x00"', b'"\x1f"', b'"\t"',
    b'"\n"',
    b"[", b"[1", b"[1,", b"[1,]", b"[,1]", b"[1 2]", b"[1;2]", b"]", b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,}',
    b"{1:2}", b'{"a" 1}', b"{a:1}", b"{'a':1}", b'{"a":1 "b":2}', b'{,"a":1}', b"/*c*/1", b"1//c", b"#c\n1", b"\xa01",
    b"\x0c1", b"\x0b1", b"1\x00", b"\xef\xbb\xbf1", b'"\xff"', b'"\xc0\x80"', b'"\xc3"', b'"\xed\xa0\x80"', b"\xff",
    b'"\xf4\x90\x80\x80"', b'"\xe2\x80"', b'{"\xff":1}', b'{"\x01":1}', b"[\xff]",
]  # fmt: skip


@pytest.mark.parametrize("text", VALID)
def test_every_json_text_is_carried_as_data(text: bytes) -> None:
    assert payloads(write(text)) == [(text, None)]


@pytest.mark.parametrize("text", VALID)
def test_every_json_text_is_carried_as_meta(text: bytes) -> None:
    body = b'{"records":[{"meta": %b ,"data": [ ] }]}' % text
    assert payloads(body) == [(b"[ ]", None if text == b"null" else text)]


@pytest.mark.parametrize("text", INVALID)
def test_what_is_not_json_is_refused_inside_data(text: bytes) -> None:
    assert payloads(write(text)) is None


@pytest.mark.parametrize("text", INVALID)
def test_what_is_not_json_is_refused_inside_unknown_fields(text: bytes) -> None:
    assert payloads(b'{"unknown":%b,"records":[{"data":1}]}' % text) is None
    assert payloads(b'{"records":[{"data":1,"unknown":%b}]}' % text) is None
    with pytest.raises(InvalidRequest):
        decode_diff(b'{"unknown":%b}' % text)


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"null", b"[]", b"1", b'"records"', b"\xef\xbb\xbf{}", b"{}{}", b"{} x", b"{}\x00", b"{}\x0c",
    b"{},",
        b"/**/{}", b"{}//", b"\x00{}",
    ],
)  # fmt: skip
def test_the_body_is_one_object_and_nothing_else(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_diff(body)


def test_white_space_around_the_body_is_fine() -> None:
    assert decode_diff(b' \t\r\n{ "limit" : 5 }\n\r\t ').limit == 5


def test_payload_texts_lose_only_the_white_space_around_them() -> None:
    body = b'{ "records" : [ { "data" :\n { "b" : 1.50 ,"a":[ ] , "b":2 } \t, "meta": {\r\n} } ] }'
    assert payloads(body) == [(b'{ "b" : 1.50 ,"a":[ ] , "b":2 }', b"{\r\n}")]


# --- lone surrogates -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("escape", [rb"\ud800", rb"\uDBFF", rb"\udc00", rb"\uDFFF", rb"\ud800\u0041", rb"\udc00\ud800"])
def test_a_lone_surrogate_is_refused_outside_payloads(escape: bytes) -> None:
    for body in (
        b'{"records":[{"data":1,"tag":"%b"}]}',
        b'{"records":[{"data":1}],"node":"%b"}',
        b'{"records":[{"data":1}],"unknown":"%b"}',
        b'{"records":[{"data":1}],"unknown":{"data":"%b"}}',
        b'{"records":[{"data":1}],"data":"%b"}',
        b'{"records":[{"data":1}],"%b":1}',
        b'{"records":[{"data":1,"%b":1}]}',
        b'{"records":[{"data":1,"unknown":["%b"]}]}',
        b'{"records":[{"data":"\\ud800","unknown":["%b"]}]}',
    ):
        assert payloads(body % escape) is None, body


def test_a_lone_surrogate_in_a_payload_that_a_later_key_replaces_is_still_inside_a_payload() -> None:
    assert payloads(rb'{"records":[{"data":"\ud800","data":1}]}') == [(b"1", None)]
    assert payloads(rb'{"records":[{"data":"\ud800"}],"records":[{"data":2}]}') == [(b"2", None)]


def test_an_escaped_backslash_is_not_the_start_of_a_surrogate() -> None:
    body = rb'{"records":[{"data":"\\ud800","tag":"\\ud800"}]}'
    assert payloads(body) == [(rb'"\\ud800"', None)]
    assert decode_write(body).records[0].tag == r"\ud800"


def test_other_faults_are_not_forgiven_beside_a_lone_surrogate() -> None:
    for data in (rb'["\ud800",]', rb'["\ud800",NaN]', b'["\\ud800","\xff"]', rb'["\ud800","\x"]', rb'"\ud800'):
        assert payloads(write(data)) is None, data
    assert payloads(rb'{"records":[{"data":"\ud800","tag":1}]}') is None


def test_payloads_with_lone_surrogates_stay_right_after_the_body_is_gone() -> None:
    records = decode_write(
        rb'{"records":[{"data":"a\ud800b"},{"data":{"\udc00":"\ud83d\ude00"},"meta":"\udfff"}]}'
    ).records
    assert [bytes(one.data) for one in records] == [rb'"a\ud800b"', rb'{"\udc00":"\ud83d\ude00"}']
    assert meta_of(records[1].meta) == rb'"\udfff"'


# --- depth -----------------------------------------------------------------------------------------------------------


def nested(levels: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return opening * levels + closing * levels


@pytest.mark.parametrize("levels", [124, 125, 999, 1001, 5000, 200_000])
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_127_levels_are_the_most(levels: int, opening: bytes) -> None:
    """The body, `records` and the record are three of them."""
    text = opening * levels + b"1" + (b"]" if opening == b"[" else b"}") * levels
    assert (payloads(write(text)) is not None) == (levels == 124)
    assert (payloads(b'{"records":[{"data":1,"u":%b}]}' % text) is not None) == (levels == 124)


def test_a_payload_of_brackets_alone_is_as_deep_as_its_length_allows() -> None:
    assert payloads(write(nested(124))) is not None
    assert payloads(write(nested(125))) is None


def test_depth_is_counted_in_unknown_fields_too() -> None:
    assert payloads(b'{"u":%b,"records":[{"data":1}]}' % nested(126)) == [(b"1", None)]
    assert payloads(b'{"u":%b,"records":[{"data":1}]}' % nested(127)) is None
    with pytest.raises(InvalidRequest):
        decode_diff(b'{"u":%b}' % nested(127))


@pytest.mark.parametrize(
    "hiding",
    [
        b'{"records":[{"data":%b,"data":1}]}',
        b'{"records":[{"data":%b}],"records":[{"data":1}]}',
        b'{"records":[{"d\\u0061ta":%b,"data":1}]}',
        b'{"records":[{"data":1,"meta":{"k":%b},"meta":{}}]}',
        b'{"records":[{"data":1}],"config":{"u":%b}}',
    ],
)
def test_depth_is_counted_where_a_later_key_wins(hiding: bytes) -> None:
    assert payloads(hiding % nested(120)) is not None
    assert payloads(hiding % nested(127)) is None
    assert payloads(hiding % nested(5000)) is None


def test_many_brackets_are_not_depth() -> None:
    body = b'{"records":[%b]}' % b",".join([b'{"data":{"a":[[1],[2]]}}'] * 500)
    assert payloads(body) is not None


@pytest.mark.parametrize(
    "filler", [b'"["', b'"]"', b'"\\"["', b'"\\\\"', b'"\\\\\\"]"', b'"}{"', b'"\xc3\xa9["', b'""', b'"\\u005b["']
)
def test_brackets_in_strings_are_text(filler: bytes) -> None:
    """Closing brackets in strings must not hide true depth, opening ones must not feign it."""
    fine = b"[" * 124 + b",".join([filler] * 300) + b"]" * 124
    deep = b"[" + filler + b"," + b"[" * 124 + b",".join([filler] * 300) + b"]" * 125
    between = b"".join(b"[" + filler + b"," for _ in range(125)) + b"1" + b"]" * 125
    assert payloads(write(fine)) == [(fine, None)]
    assert payloads(write(deep)) is None
    assert payloads(write(between)) is None


@given(
    st.recursive(
        st.sampled_from([b"1", b'"]"', b'"["', b'"\\""', b'"{\\\\"', b'"a\\"}"']),
        lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda items: b"[" + b",".join(items) + b"]"),
        max_leaves=20,
    ),
    st.integers(120, 130),
)
def test_depth_agrees_with_the_oracle(seed: bytes, wrap: int) -> None:
    text = b"[" * wrap + seed + b"]" * wrap
    assert is_too_deep(text) == (parse(text).depth > 127)
    assert not is_too_deep(seed)


# --- types -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [b"1.0", b"1e3", b"1E0", b'"1"', b"true", b"false", b"-1", b"[]", b"{}", b"null", b"-0.0"]
)
def test_an_integer_is_an_integer(value: bytes) -> None:
    for key in (b"from_seq", b"limit", b"wait_ms", b"max_batch_bytes"):
        with pytest.raises(InvalidRequest):
            decode_diff(b'{"%b":%b}' % (key, value))
    with pytest.raises(InvalidRequest):
        decode_config(b'{"ttl_ms":%b}' % value)


@pytest.mark.parametrize(("key", "high"), [(b"from_seq", 2**64 - 1), (b"limit", 2**32 - 1), (b"wait_ms", 2**32 - 1)])
def test_an_integer_stays_in_the_range_of_its_type(key: bytes, high: int) -> None:
    decode_diff(b'{"%b":%d}' % (key, high))
    for beyond in (high + 1, 10**30, 10**5000):
        with pytest.raises(InvalidRequest):
            decode_diff(b'{"%b":%b}' % (key, str(beyond).encode() if beyond < 10**40 else b"1" + b"0" * 5000))


def test_minus_zero_is_zero() -> None:
    assert decode_diff(b'{"from_seq":-0}').from_seq == 0


@pytest.mark.parametrize("value", [b"0", b"1", b'"true"', b"null", b"[]", b"1.0"])
def test_a_bool_is_a_bool(value: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_diff(b'{"include_tags":%b}' % value)


@pytest.mark.parametrize("value", [b"1", b"true", b"[]", b"{}"])
def test_a_string_is_a_string(value: bytes) -> None:
    for body in (
        b'{"records":[{"data":1,"tag":%b}]}',
        b'{"records":[],"node":%b}',
        b'{"records":[],"idempotency_key":%b}',
    ):
        assert payloads(body % value) is None


def test_a_refused_word_comes_with_those_that_are_allowed() -> None:
    refused: list[tuple[Callable[[bytes], object], bytes, str]] = [
        (decode_config, b'{"durability":"safe"}', "disk, ephemeral, fsync, memory"),
        (decode_write, b'{"records":[{"data":1,"unique":{"key":"a","on_conflict":"x"}}]}', "keep, reject, replace"),
        (decode_schedule, b'{"topic":"t","cron":"@daily","missed":"x"}', "all, one, skip"),
    ]
    for decode, body, allowed in refused:
        with pytest.raises(InvalidRequest, match=f"; allowed: {allowed}$"):
            decode(body)


def test_null_is_taken_where_it_is_allowed_and_nowhere_else() -> None:
    body = (
        b'{"records":[{"data":null,"tag":null,"node":null,"meta":null}],"node":null,"idempotency_key":null,'
        b'"create":null,"config":null}'
    )
    assert payloads(body) == [(b"null", None)]
    assert decode_write(body).create is None
    for bad in (
        b'{"records":null}',
        b'{"records":[null]}',
        b'{"records":[],"disable_backpressure":null}',
        b'{"records":[],"config":{"type":null}}',
    ):
        assert payloads(bad) is None
    assert decode_config(b'{"durability":null,"priority":null,"dead_letter":null}').durability is None
    assert decode_diff(b'{"node":null}').node is None


@pytest.mark.parametrize("value", [b'"stack"', b'"LOG"', b'""', b"1", b"null"])
def test_an_enum_takes_its_words_only(value: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_config(b'{"type":%b}' % value)


def test_required_fields() -> None:
    for body in (b"{}", b'{"records":[{}]}', b'{"records":[{"Data":1}]}', b'{"records":[{"tag":"t"}]}'):
        assert payloads(body) is None


def test_unknown_fields_are_ignored_at_every_level() -> None:
    body = b'{"x":[1],"records":[{"y":{"data":2},"data":1}],"config":{"z":null},"Records":7}'
    assert payloads(body) == [(b"1", None)]


def test_keys_may_be_spelled_with_escapes() -> None:
    assert payloads(rb'{"\u0072ecords":[{"d\u0061ta":1}]}') == [(b"1", None)]


# --- repeated keys ---------------------------------------------------------------------------------------------------


def test_the_last_of_equal_keys_wins() -> None:
    assert decode_diff(b'{"limit":1,"limit":2}').limit == 2
    assert payloads(b'{"records":[{"data":1,"data":2}]}') == [(b"2", None)]
    assert payloads(b'{"records":[{"data":1,"meta":{},"meta":null}]}') == [(b"1", None)]
    assert payloads(b'{"records":[{"data":1}],"records":[{"data":3}]}') == [(b"3", None)]


def test_a_replaced_value_may_have_any_type() -> None:
    assert decode_diff(b'{"limit":"x","limit":2}').limit == 2
    assert payloads(b'{"records":5,"records":[{"data":1,"tag":7,"tag":"t"}]}') == [(b"1", None)]
    assert payloads(b'{"records":[{"data":{ "a":1 },"tag":7,"tag":"t"}],"config":{"type":1,"type":"log"}}') == [
        (b'{ "a":1 }', None)
    ]


def test_the_last_of_equal_keys_is_checked() -> None:
    with pytest.raises(InvalidRequest):
        decode_diff(b'{"limit":2,"limit":"x"}')
    assert payloads(b'{"records":[{"data":1,"tag":"t","tag":7}]}') is None


def test_repeated_keys_inside_data_are_text() -> None:
    assert payloads(write(b'{"a":1,"a":2}')) == [(b'{"a":1,"a":2}', None)]


# --- against the oracle ----------------------------------------------------------------------------------------------

SNIPPETS = [
    *VALID[:30], *INVALID, b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b" ", b"\n", b'"data":', b'"meta":',
    b'"tag":',
    b'"node":', b'"records":', b'"create":', b'"x":', rb"\ud800", rb"\udc00", rb"\u0041", b"\x80", b"\xc3\xa9",
]  # fmt: skip


def joined(pairs: list[tuple[bytes, bytes]]) -> bytes:
    return b"{" + b",".join(key + b":" + value for key, value in pairs) + b"}"


scalars = st.sampled_from(VALID) | st.builds(
    lambda text: json.dumps(text, ensure_ascii=False).encode("utf-8", "replace"), st.text(max_size=5)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: b"[" + b",".join(items) + b"]")
        | st.lists(st.tuples(st.sampled_from([b'"a"', b'"data"', b'"records"']), inner), max_size=3).map(joined)
    ),
    max_leaves=5,
)


record_fields = st.sampled_from([b'"data"', b'"data"', b'"data" ', b'"meta"', b'"tag"', b'"node"', b'"x"'])
records = st.lists(st.tuples(record_fields, values), max_size=4).map(joined)
body_fields = st.tuples(st.sampled_from([b'"node"', b'"create"', b'"x"', b'"disable_backpressure"']), values)
bodies = st.builds(
    lambda items, fields: joined([*fields[:1], (b'"records"', b"[" + b",".join(items) + b"]"), *fields[1:]]),
    st.lists(records, max_size=3),
    st.lists(body_fields, max_size=2),
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    body = draw(bodies)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(body)))
        cut = draw(st.integers(0, 3))
        body = body[:at] + draw(st.sampled_from(SNIPPETS) | st.just(b"")) + body[at + cut :]
    return body


@given(bodies)
def test_well_formed_bodies_are_read_as_the_oracle_reads_them(body: bytes) -> None:
    assert payloads(body) == takes_write(body)


@given(mutated())
@example(b'{"records":[{"data":"\\ud800","data":1}]}')
@example(b'{"records":[{"data":1,"tag":1,"tag":"a"}]}')
def test_mangled_bodies_are_judged_as_the_oracle_judges_them(body: bytes) -> None:
    assert payloads(body) == takes_write(body)


@given(st.binary(max_size=12))
def test_garbage_is_judged_as_the_oracle_judges_it(garbage: bytes) -> None:
    body = write(garbage)
    assert payloads(body) == takes_write(body)


def test_the_oracle_agrees_with_the_lists_of_this_file() -> None:
    for text in VALID:
        parse(text)
    for text in INVALID:
        with pytest.raises(NotJson):
            parse(text)
