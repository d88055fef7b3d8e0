"""Tag sidecars: lookups give what a scan of all tags gives, and a stale or damaged file is not used."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import Corruption
from topics.formats.segments.sidecar import HEADER_BYTES, TagSidecar, encode_sidecar, sidecar_matches

tags = st.none() | st.binary(max_size=3) | st.sampled_from((b"", b"a", b"ab", b"abc", b"b", b"\xff", b"\xff\xff"))
columns = st.lists(st.tuples(tags, st.integers(0, 2**32 - 1)), max_size=30)
Columns = list[tuple[bytes | None, int]]


def encode(content: Columns) -> bytes:
    return encode_sidecar(tags=[tag for tag, _ in content], sizes=[size for _, size in content], data_len=77)


SAMPLE = encode([(b"b", 1), (None, 0), (b"a", 3), (b"b", 4)])


@given(columns, st.binary(max_size=3))
def test_lookups_find_what_a_scan_finds(content: Columns, wanted: bytes) -> None:
    sidecar = TagSidecar(encode(content))
    for key in {wanted, *(tag for tag, _ in content if tag is not None)}:
        assert sidecar.lookup_eq(key).tolist() == [slot for slot, (tag, _) in enumerate(content) if tag == key]
        prefixed = [slot for slot, (tag, _) in enumerate(content) if tag is not None and tag.startswith(key)]
        assert sidecar.lookup_prefix(key).tolist() == prefixed


@given(columns)
def test_sizes_and_tags_read_back(content: Columns) -> None:
    sidecar = TagSidecar(encode(content))
    assert sidecar.sizes.tolist() == [size for _, size in content]
    distinct = sorted({tag for tag, _ in content if tag is not None})
    assert [sidecar.tag(rank) for rank in range(len(sidecar))] == distinct
    assert (sidecar.count, sidecar.data_len) == (len(content), 77)


def test_the_empty_prefix_finds_every_tagged_slot() -> None:
    assert TagSidecar(SAMPLE).lookup_prefix(b"").tolist() == [0, 2, 3]


def test_a_sidecar_belongs_to_one_segment() -> None:
    assert sidecar_matches(SAMPLE, count=4, data_len=77)
    assert not sidecar_matches(SAMPLE, count=5, data_len=77)
    assert not sidecar_matches(SAMPLE, count=4, data_len=78)


def test_every_truncation_and_bit_flip_is_seen() -> None:
    for size in range(len(SAMPLE)):
        assert not sidecar_matches(SAMPLE[:size], count=4, data_len=77)
    assert not sidecar_matches(SAMPLE + b"\0", count=4, data_len=77)
    for bit in range(8 * len(SAMPLE)):
        raw = bytearray(SAMPLE)
        raw[bit // 8] ^= 1 << bit % 8
        assert not sidecar_matches(bytes(raw), count=4, data_len=77)


def test_counts_are_checked_before_anything_is_read() -> None:
    for field in range(24, HEADER_BYTES, 4):
        raw = SAMPLE[:field] + b"\xff\xff\xff\xff" + SAMPLE[field + 4 :]
        with pytest.raises(Corruption):
            TagSidecar(raw)


def test_one_size_per_slot() -> None:
    with pytest.raises(ValueError, match="2 tags for 1 sizes"):
        encode_sidecar(tags=[None, None], sizes=[1], data_len=0)


def test_a_segment_without_tags_has_a_sidecar_too() -> None:
    sidecar = TagSidecar(encode([(None, 5), (None, 6)]))
    assert (len(sidecar), sidecar.sizes.tolist(), sidecar.lookup_prefix(b"").tolist()) == (0, [5, 6], [])
