"""Payload blobs: split exactly, also when data looks like the parting text, one by one and in columns."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.formats.strategies import Texts, texts

from topics.formats.wal.blob import accounted_size, accounted_sizes, blob, blobs, meta_lengths, split_blob

LOOK_ALIKES = [
    Texts(b'{"a":1,"m":2}', None),
    Texts(b'{"a":1,"m":2}', b'{"m":1,"m":2}'),
    Texts(b'[{"a":{},"m":[]},{"b":1,"m":{}}]', None),
    Texts(b'"\\",\\"m\\":1"', None),
    Texts(b'"\\",\\"m\\":1"', b"{}"),
    Texts(b'{"x":"}","m":{"y":"{"}}', b'{"d":1,"m":2}'),
    Texts(rb'"\ud800"', b"{}"),
    Texts(rb'{"a":"\udc00","m":1}', None),
    Texts(rb'{"a":"\udc00","m":1}', rb'{"k":"\ud800"}'),
    Texts(b"1" * 5000, b"1"),
    Texts(b'{"a":[ 1 ,\n2 ] ,"m": 3}', b'{ "k" : 1 }'),
    Texts(b"[" * 100 + b'{"a":1,"m":1}' + b"]" * 100, b"null"),
]


@given(texts)
def test_a_blob_splits_into_the_texts_it_was_made_of(text: Texts) -> None:
    assert split_blob(blob(*text)) == text


@pytest.mark.parametrize("text", LOOK_ALIKES)
def test_a_look_alike_splits_exactly(text: Texts) -> None:
    assert split_blob(blob(*text)) == text
    assert accounted_size(blob(*text)) == len(text.data) + len(text.meta or b"")


@given(st.lists(texts, max_size=8), st.binary(max_size=12))
@example(LOOK_ALIKES, b',"m":')
@example(LOOK_ALIKES, b'{"d":0,"m":')
def test_the_plural_forms_say_the_same_of_every_blob(batch: list[Texts], between: bytes) -> None:
    stored = [blob(*text) for text in batch]
    lengths = np.array([len(piece) for piece in stored], np.int64)
    starts = np.cumsum(lengths + len(between)) - lengths
    buffer = b"".join(between + piece for piece in stored) + between
    expected = [-1 if text.meta is None else len(text.meta) for text in batch]
    assert meta_lengths(buffer, starts, lengths).tolist() == expected
    assert meta_lengths(bytearray(buffer), starts[::-1], lengths[::-1]).tolist() == expected[::-1]
    assert accounted_sizes(memoryview(buffer), starts, lengths).tolist() == [accounted_size(piece) for piece in stored]


@pytest.mark.parametrize("meta", [None, b"", b"{}"])
def test_the_parting_text_is_found_at_every_place(meta: bytes | None) -> None:
    stored = [blob(b'"%s"' % (b"x" * n), meta) for n in range(200)]
    lengths = np.array([len(piece) for piece in stored], np.int64)
    starts = np.cumsum(lengths) - lengths
    assert meta_lengths(b"".join(stored), starts, lengths).tolist() == [-1 if meta is None else len(meta)] * 200


NO_BLOBS = [
    b'{"d":1,"m":}',
    b'{"d":\xff,"m":\xff}',
    b'{"d":' + b"[" * 99999 + b',"m":}',
    b',"m":',
    b'{"d":1,"m":{},"x":4}',
]


@pytest.mark.parametrize("stored", NO_BLOBS)
def test_bytes_that_are_no_blob_do_not_raise(stored: bytes) -> None:
    (length,) = meta_lengths(stored, np.array([0], np.int64), np.array([len(stored)], np.int64)).tolist()
    assert -1 <= length <= len(stored)
    assert accounted_size(stored) <= len(stored)


def test_blobs_without_meta_are_made_in_one_go() -> None:
    assert blobs([b"1", b"{}"]) == [blob(b"1"), blob(b"{}")] == [b'{"d":1}', b'{"d":{}}']
