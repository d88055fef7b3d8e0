"""Decoding of answers into result structs.

Payload texts may hold escapes of lone surrogates, which msgspec refuses to read. Such an answer is read once more with
these escapes spelled in another way, and they are put back into the payloads: byte for byte what was stored."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TypeVar

import msgspec
from msgspec.structs import force_setattr

from topics.model.paging import end_of
from topics.model.results import ClaimResult, Job, ReadResult, Record

T = TypeVar("T")
S = TypeVar("S", Record, Job)

# Whatever follows a backslash belongs to it, so an escaped backslash cannot hide or fake an escape.
_ESCAPE = re.compile(rb"\\(?:u([dD][89abcdefABCDEF][0-9a-fA-F]{2})|(.))", re.DOTALL)


def decoder_of(kind: type[T]) -> Callable[[bytes], T]:
    return msgspec.json.Decoder(kind).decode


def _disguised(body: bytes) -> tuple[bytes, bytes]:
    """The body without surrogate escapes, and the word that stands for `\\u` in it."""
    number = 0
    while (word := b"~%d~" % number) in body:
        number += 1
    return _ESCAPE.sub(lambda found: word + found[1] if found[1] else found[0], body), word


def _restored(item: S, word: bytes) -> S:
    texts = {name: getattr(item, name) for name in ("data", "meta")}
    changed = {
        name: msgspec.Raw(bytes(text).replace(word, b"\\u"))
        for name, text in texts.items()
        if isinstance(text, msgspec.Raw)
    }
    return msgspec.structs.replace(item, **changed)


_page = decoder_of(ReadResult)
_claim = decoder_of(ClaimResult)
_job = decoder_of(Job)


def decode_page(body: bytes) -> ReadResult:
    page = _decode_page(body)
    stamped(page.records, end_of(page).epoch)
    return page


def _decode_page(body: bytes) -> ReadResult:
    try:
        return _page(body)
    except msgspec.DecodeError:
        text, word = _disguised(body)
    page = _page(text)
    return msgspec.structs.replace(page, records=[_restored(record, word) for record in page.records])


def stamped(records: Sequence[Record], epoch: int | None) -> Sequence[Record]:
    """The same records, each with the epoch that was told once for all of them. Nobody has seen them yet."""
    if epoch is not None:
        deque(map(force_setattr, records, repeat("epoch"), repeat(epoch)), maxlen=0)
    return records


def decode_claim(body: bytes) -> ClaimResult:
    try:
        return _claim(body)
    except msgspec.DecodeError:
        text, word = _disguised(body)
    claim = _claim(text)
    return msgspec.structs.replace(claim, claimed=[_restored(job, word) for job in claim.claimed])


def decode_job(body: bytes) -> Job:
    try:
        return _job(body)
    except msgspec.DecodeError:
        text, word = _disguised(body)
    return _restored(_job(text), word)


class RecordBatch(msgspec.Struct, frozen=True):
    """A `record` frame of a watch stream."""

    topic: str
    records: list[Record]
    to_seq: int


_batch = decoder_of(RecordBatch)


def decode_batch(data: bytes) -> RecordBatch:
    try:
        return _batch(data)
    except msgspec.DecodeError:
        text, word = _disguised(data)
    batch = _batch(text)
    return msgspec.structs.replace(batch, records=[_restored(record, word) for record in batch.records])
