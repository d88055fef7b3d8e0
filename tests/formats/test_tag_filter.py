"""Tag filters: what is there is never denied, what is not there mostly is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topics.formats.segments.sidecar import WORD_BYTES, TagFilter, encode_filter, words_of


def filter_of(tags: list[bytes]) -> TagFilter:
    return TagFilter(memoryview(encode_filter(tags)))


@given(st.lists(st.binary(max_size=6), unique=True, max_size=60))
def test_a_tag_that_is_there_is_never_denied(tags: list[bytes]) -> None:
    assert len(encode_filter(tags)) == WORD_BYTES * words_of(len(tags))
    made = filter_of(tags)
    assert all(made.may_have(tag) for tag in tags)


def test_most_tags_that_are_not_there_are_denied() -> None:
    made = filter_of([b"tag-%d" % at for at in range(10_000)])
    taken = sum(made.may_have(b"other-%d" % at) for at in range(10_000))
    assert taken < 500


def test_a_segment_without_tags_has_none() -> None:
    assert not filter_of([]).may_have(b"a")
