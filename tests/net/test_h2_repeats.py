"""Heads that come again over HTTP/2: decoded once, and never taken for others."""

from __future__ import annotations

import pytest
from hpack import Decoder, Encoder, InvalidTableSizeError
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.net.test_h2_session import GET, POST, Fields, Pair

from topics.net.h2_session import KNOWN_MAX, H2BadRequest, H2Event, H2Request, RepeatingDecoder

LIMIT = 1 << 16
names = st.sampled_from([b"a", b"b", b"content-type", b":path", b":method"])
values = st.sampled_from([b"", b"x", b"GET", b"/", b"long" * 40])
blocks = st.lists(st.tuples(names, values), min_size=1, max_size=5)
resizes = st.sampled_from([0, 64, 200, 4096])


@settings(max_examples=200)
@given(st.lists(st.one_of(blocks, resizes), min_size=1, max_size=40))
def test_every_block_means_what_the_librarys_decoder_says(script: list[list[tuple[bytes, bytes]] | int]) -> None:
    encoder, plain, ours = Encoder(), Decoder(LIMIT), RepeatingDecoder(LIMIT)
    for step in script:
        if isinstance(step, int):
            if step != encoder.header_table_size:  # the library's encoder forgets a change that is asked for twice
                encoder.header_table_size = step
            continue
        for _ in range(2):  # the second time mostly as indices
            block = encoder.encode(step)
            assert list(ours.decode(block, raw=True)) == list(plain.decode(block, raw=True)) == step


def test_a_block_that_was_known_is_looked_up_anew_when_the_table_has_changed() -> None:
    encoder, decoder = Encoder(), RepeatingDecoder(LIMIT)
    decoder.decode(encoder.encode([(b"a", b"1")]), raw=True)
    block = encoder.encode([(b"a", b"1")])
    assert decoder.decode(block, raw=True) == decoder.decode(block, raw=True) == [(b"a", b"1")]
    decoder.decode(encoder.encode([(b"a", b"2")]), raw=True)  # takes the index
    assert decoder.decode(block, raw=True) == [(b"a", b"2")]


def test_whoever_gets_a_known_block_may_keep_and_change_it() -> None:
    encoder, decoder = Encoder(), RepeatingDecoder(LIMIT)
    decoder.decode(encoder.encode([(b"a", b"1")]), raw=True)
    block = encoder.encode([(b"a", b"1")])
    for _ in range(3):
        fields = decoder.decode(block, raw=True)
        assert fields == [(b"a", b"1")]
        assert isinstance(fields, list)
        fields.clear()


def test_few_blocks_are_remembered() -> None:
    encoder, decoder = Encoder(), RepeatingDecoder(LIMIT)
    fields = [(b"a", b"%d" % number) for number in range(3 * KNOWN_MAX)]
    decoder.decode(encoder.encode(fields), raw=True)
    for field in fields:
        assert decoder.decode(encoder.encode([field]), raw=True) == [field]
        assert len(decoder._known) <= KNOWN_MAX


def requests(pair: Pair, *all_fields: Fields) -> list[H2Event]:
    events: list[H2Event] = []
    for fields in all_fields:
        pair.request(fields)
        events += [event for event in pair.exchange()[0] if isinstance(event, H2Request | H2BadRequest)]
    return events


def test_a_repeated_head_is_the_same_head_and_another_one_is_another() -> None:
    first, again, other, back = requests(Pair(), GET, GET, POST, GET)
    assert isinstance(first, H2Request)
    assert isinstance(again, H2Request)
    assert isinstance(other, H2Request)
    assert isinstance(back, H2Request)
    assert again.head is first.head
    assert other.head is not first.head
    assert (other.head.method, other.head.raw_path) == ("POST", b"/t")
    assert (back.head.raw_path, back.head.query) == (b"/v0/topics", b"x=1")


def test_a_bad_head_between_equal_ones_is_refused_each_time() -> None:
    bad: Fields = [*GET[:3], (":path", "no path")]
    events = requests(Pair(validate=False), GET, bad, bad, GET)
    assert [type(event) for event in events] == [H2Request, H2BadRequest, H2BadRequest, H2Request]


def test_the_declared_length_is_part_of_a_head() -> None:
    pair = Pair()
    lengths = []
    for body in (b"1", b"1", b"22"):
        pair.request([*POST, ("content-length", str(len(body)))], body)
        (event,) = [event for event in pair.exchange()[0] if isinstance(event, H2Request)]
        lengths.append(event.content_length)
        assert b"content-length" not in event.head.headers
    assert lengths == [1, 1, 2]


def test_a_table_that_should_have_shrunk_is_still_refused() -> None:
    encoder, decoder = Encoder(), RepeatingDecoder(LIMIT)
    decoder.decode(encoder.encode([(b"a", b"1")]), raw=True)
    block = encoder.encode([(b"a", b"1")])
    decoder.decode(block, raw=True)
    decoder.max_allowed_table_size = 100
    with pytest.raises(InvalidTableSizeError):
        decoder.decode(block, raw=True)
