"""Hypothesis strategies for records and logs."""

import json
from typing import Any, NamedTuple

from hypothesis import strategies as st

from topics.formats.wal.blob import blob
from topics.formats.wal.frame import encode_appends

U64_MAX = 2**64 - 1
u64 = st.one_of(st.integers(0, 300), st.integers(0, U64_MAX))
seqs = st.one_of(st.integers(1, 300), st.integers(1, 2**62))
times = st.one_of(st.integers(0, 300), st.integers(0, 2**62))

# Keys and strings made of the very characters that part data from meta.
tricky = st.text(alphabet=st.sampled_from('m":,{}[]\\d ')) | st.text(max_size=8)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | tricky,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("m") | tricky, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def json_texts(draw: st.DrawFn) -> bytes:
    value = draw(json_values)
    spaced = draw(st.booleans())
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), separators=None if spaced else (",", ":"))
    return text.encode("utf-8", "replace")


class Texts(NamedTuple):
    data: bytes
    meta: bytes | None


texts = st.builds(Texts, json_texts(), st.none() | json_texts())
names = st.none() | st.text(max_size=6).map(str.encode)


class Record(NamedTuple):
    node: bytes | None
    tag: bytes | None
    data: bytes
    """The payload blob."""


records = st.builds(lambda node, tag, text: Record(node, tag, blob(*text)), names, names, texts)


@st.composite
def submissions(draw: st.DrawFn) -> bytes:
    """One encoded submission of Append frames."""
    batch = draw(st.lists(records, min_size=1, max_size=5))
    return encode_appends(
        topic_id=draw(u64),
        first_seq=draw(seqs),
        ts=draw(times),
        datas=[record.data for record in batch],
        nodes=[record.node for record in batch],
        tags=[record.tag for record in batch],
        durable=draw(st.booleans()),
    ).buffer


logs = st.lists(submissions(), max_size=4).map(b"".join)


@st.composite
def damaged(draw: st.DrawFn, source: st.SearchStrategy[bytes]) -> bytes:
    """Bytes with a few faults: flips, cuts, zeroed runs, inserted bytes, and a zero tail."""
    content = bytearray(draw(source))
    for fault in draw(st.lists(st.sampled_from(("flip", "cut", "zero", "insert", "tail")), max_size=3)):
        at = draw(st.integers(0, len(content)))
        if fault == "flip" and at < len(content):
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif fault == "cut":
            del content[at:]
        elif fault == "zero":
            size = min(draw(st.integers(1, 64)), len(content) - at)
            content[at : at + size] = bytes(size)
        elif fault == "insert":
            content[at:at] = draw(st.binary(max_size=8))
        elif fault == "tail":
            content += bytes(draw(st.integers(1, 64)))
    return bytes(content)
