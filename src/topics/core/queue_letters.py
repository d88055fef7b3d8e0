"""Dead letters: the copy of an exhausted job, with where it came from in its meta (semantics.md section 16.9).

Limits do not apply to what we add, and the job passed them once: the batch is built without a check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from topics.core.meta import with_keys
from topics.model.payload import make_blob, split_blob
from topics.model.record import WriteBatch
from topics.model.run import StoredRecord


class Letter(NamedTuple):
    record: StoredRecord
    deliveries: int


def letter_batch(queue: str, letters: Sequence[Letter]) -> WriteBatch:
    """The write that takes these jobs to the dead-letter topic."""
    texts = [_texts(queue, letter) for letter in letters]
    sizes = [len(data) + len(meta) for data, meta in texts]
    tags = [letter.record.tag for letter in letters]
    return WriteBatch(
        blobs=[make_blob(data, meta) for data, meta in texts],
        sizes=sizes,
        tags=None if all(tag is None for tag in tags) else tags,
        nodes=[letter.record.node for letter in letters],
        key=None,
        count=len(letters),
        total_bytes=sum(sizes),
        max_bytes=max(sizes),
    )


def _texts(queue: str, letter: Letter) -> tuple[bytes, bytes]:
    data, meta = split_blob(letter.record.blob)
    provenance = {
        "$dead_letter_from": queue,
        "$dead_letter_deliveries": str(letter.deliveries),
        "$dead_letter_src_seq": str(letter.record.seq),
    }
    return data, with_keys(meta, {name: msgspec.json.encode(text) for name, text in provenance.items()})
