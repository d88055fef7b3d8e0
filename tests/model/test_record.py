"""Write batches: columns, limits and the order in which limits decide."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics import limits
from topics.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from topics.model.payload import decode_payload, make_blob, object_keys, split_blob
from topics.model.record import RecordIn, WriteBatch, build_batch


def record(data: bytes = b"1", meta: bytes | None = None, **fields: Any) -> RecordIn:
    if meta is not None:
        fields["meta"] = msgspec.Raw(meta)
    return RecordIn(msgspec.Raw(data), **fields)


def test_one_record_without_extras() -> None:
    assert build_batch([record(b'{"a": 1}')]) == WriteBatch([b'{"d":{"a": 1}}'], [8], None, None, None, 1, 8, 8)


def test_columns_of_a_mixed_batch() -> None:
    batch = build_batch(
        [record(b"1", tag="t"), record(b"22", b'{"k":2}'), record(b"333", node="n", tag="")], default_node="d"
    )
    assert batch.blobs == [b'{"d":1}', b'{"d":22,"m":{"k":2}}', b'{"d":333}']
    assert batch.sizes == [1, 9, 3]
    assert batch.tags == [b"t", None, b""]
    assert batch.nodes == [b"d", b"d", b"n"]
    assert (batch.count, batch.total_bytes, batch.max_bytes) == (3, 13, 9)


def test_a_single_record_agrees_with_the_plural_path() -> None:
    for one in (record(b"1"), record(b"1", b"{}"), record(b"1", tag="t", node="n"), record(b"1", b"[1]", node="")):
        single, plural = build_batch([one], default_node="d"), build_batch([one, one], default_node="d")
        assert plural.blobs == single.blobs * 2
        assert plural.sizes == single.sizes * 2
        assert plural.tags == (single.tags and single.tags * 2)
        assert plural.nodes == single.nodes


def test_null_meta_is_no_meta() -> None:
    assert build_batch([record(b"1", b"null")]).blobs == [b'{"d":1}']
    assert build_batch([record(b"1", b"null"), record(b"2", b"{}")]).blobs == [b'{"d":1}', b'{"d":2,"m":{}}']


def test_meta_that_is_no_object_is_kept() -> None:
    assert build_batch([record(b"1", b"[ 1 ]")]).blobs == [b'{"d":1,"m":[ 1 ]}']


@pytest.mark.parametrize(
    ("nodes", "default", "column"),
    [
        ([None, None], None, None),
        ([None, None], "d", b"d"),
        (["n", "n"], None, b"n"),
        (["n", "n"], "d", b"n"),
        (["n", None], None, [b"n", None]),
        ([None, "n"], "d", [b"d", b"n"]),
        (["", ""], None, b""),
    ],
)
def test_a_uniform_node_is_one_value(nodes: list[str | None], default: str | None, column: object) -> None:
    assert build_batch([record(node=node) for node in nodes], default_node=default).nodes == column


def test_number_of_records() -> None:
    with pytest.raises(InvalidRequest):
        build_batch([])
    assert build_batch([record()] * 10_000).count == 10_000
    with pytest.raises(BatchTooLarge) as refused:
        build_batch([record()] * 10_001)
    assert refused.value.detail is None


FITS = [
    record(tag="t" * 256),
    record(tag="é" * 128),
    record(node="n" * 128),
    record(meta=b'"' + b"m" * 16382 + b'"'),
    record(meta=b"{%b}" % b",".join(b'"%d":1' % n for n in range(64))),
    record(meta=b"[%b]" % b",".join(b'{"%d":1}' % n for n in range(100))),
    record(data=b'"' + b"x" * (limits.RECORD_BYTES_MAX - 2) + b'"'),
    record(data=b'"' + b"x" * (limits.RECORD_BYTES_MAX - 4) + b'"', meta=b"{}"),
]
INVALID = [
    record(tag="t" * 257),
    record(tag="é" * 129),
    record(node="n" * 129),
    record(node="é" * 65),
    record(meta=b'"' + b"m" * 16383 + b'"'),
    record(meta=b"{%b}" % b",".join(b'"%d":1' % n for n in range(65))),
    record(meta=b"{%b}" % b",".join(b'"%d\\ud800":1' % n for n in range(65))),
]
TOO_LARGE = [
    record(data=b'"' + b"x" * (limits.RECORD_BYTES_MAX - 1) + b'"'),
    record(data=b'"' + b"x" * (limits.RECORD_BYTES_MAX - 3) + b'"', meta=b"{}"),
]


@pytest.mark.parametrize("number", [1, 2])
def test_each_limit_is_inclusive(number: int) -> None:
    for one in FITS:
        build_batch([one] * number)


@pytest.mark.parametrize("before", [0, 1])
def test_one_more_is_refused(before: int) -> None:
    for one in INVALID:
        with pytest.raises(InvalidRequest):
            build_batch([record()] * before + [one])
    for one in TOO_LARGE:
        with pytest.raises(RecordTooLarge):
            build_batch([record()] * before + [one])


def test_the_first_faulty_record_decides() -> None:
    large, bad = TOO_LARGE[0], INVALID[0]
    with pytest.raises(RecordTooLarge):
        build_batch([record(), large, bad])
    with pytest.raises(InvalidRequest):
        build_batch([record(), bad, large])


def test_within_a_record_size_comes_last() -> None:
    with pytest.raises(InvalidRequest):
        build_batch([record(data=b'"' + b"x" * limits.RECORD_BYTES_MAX + b'"', tag="t" * 257)])


def test_the_default_node_is_measured_even_where_no_record_uses_it() -> None:
    for nodes in ([None], ["n"], ["n", None], ["n", "n"], ["n", "m"]):
        with pytest.raises(InvalidRequest):
            build_batch([record(node=node) for node in nodes], default_node="n" * 129)
        build_batch([record(node=node) for node in nodes], default_node="n" * 128)


def test_idempotency_key() -> None:
    assert build_batch([record()], idempotency_key="é").key == "é".encode()
    assert build_batch([record()], idempotency_key="").key == b""
    assert build_batch([record()], idempotency_key="k" * 256).key == b"k" * 256
    with pytest.raises(InvalidRequest):
        build_batch([record()], idempotency_key="k" * 257)


def test_the_key_is_checked_after_the_count_and_before_the_records() -> None:
    with pytest.raises(BatchTooLarge):
        build_batch([record()] * 10_001, idempotency_key="k" * 257)
    with pytest.raises(InvalidRequest):
        build_batch([TOO_LARGE[0]], idempotency_key="k" * 257)


def test_text_that_is_not_unicode_is_refused() -> None:
    for one in (record(tag="\ud800"), record(node="\ud800")):
        for number in (1, 2):
            with pytest.raises(InvalidRequest):
                build_batch([one] * number)
    with pytest.raises(InvalidRequest):
        build_batch([record()], idempotency_key="\ud800")


def test_a_nul_cannot_shift_the_columns() -> None:
    with pytest.raises(InvalidRequest):
        build_batch([record(b'"\0"'), record()])
    with pytest.raises(InvalidRequest):
        build_batch([record(b'"\0"', b"{}"), record()])


json_texts = st.recursive(
    st.sampled_from([b"1", b"-0.50e+7", b'"a"', b'",\\"m\\":"', b'"\\ud800"', b"null", b'"\xc3\xa9"', b"9" * 5000]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: b"[" + b" , ".join(items) + b"]")
        | st.lists(st.tuples(st.sampled_from([b'"m"', b'"d"', b'""']), inner), max_size=3).map(
            lambda pairs: b"{" + b",".join(key + b":" + value for key, value in pairs) + b"}"
        )
    ),
    max_leaves=6,
)


@given(json_texts, st.none() | json_texts)
def test_a_blob_splits_into_what_it_was_made_of(data: bytes, meta: bytes | None) -> None:
    assert split_blob(make_blob(data, meta)) == (data, meta)


def test_object_keys() -> None:
    assert object_keys(b'{"a":1, "b":{"c":1}}') == 2
    assert object_keys(b'{"a":1,"a":2}') == 1
    assert object_keys(b'{"\\ud800":1,"b":2}') == 2
    assert object_keys(b"[1,2]") == object_keys(b"{}") == object_keys(b'"{"') == 0


def test_decode_payload() -> None:
    assert decode_payload(b'{"a":1}') == {"a": 1}
    assert decode_payload(msgspec.UNSET) is None
    assert decode_payload(b'"\\ud800"') == "\ud800"
