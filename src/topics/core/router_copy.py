"""Copies: source records turned into records of a destination (`docs/spec/semantics.md#sec-15-3` and
`docs/spec/semantics.md#sec-15-6`).

    chosen      which records of a run a router copies: filter and hop count decide
    batch_of    their texts, with `exactly_once` provenance in the meta

`data` and `meta` keep their bytes; the copy's seq and ts are the destination's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from topics import limits
from topics.core.lineage import epoch_of
from topics.core.meta import with_keys
from topics.core.retention.removal import blocks_from
from topics.core.router import RouterProgress
from topics.core.slots.sealed_slots import Sealed
from topics.core.slots.tail import TailRun
from topics.core.topic import TopicLog
from topics.model.ops import HOPS_SHIFT
from topics.model.payload import accounted_bytes, make_blob, split_blob
from topics.model.record import WriteBatch
from topics.model.router import RouterDef
from topics.model.run import RecordRun, StoredRecord


class Copy(NamedTuple):
    """One record on its way: where it came from, what it will be."""

    source_seq: int
    ts: int
    blob: bytes
    size: int
    node: bytes | None
    tag: bytes | None
    hops: int


def chosen(router: RouterProgress, source: TopicLog, run: RecordRun, hops: Sequence[int]) -> list[Copy]:
    """The records that pass, in order. `hops` are those of the run's records."""
    definition = router.definition
    match = definition.filter
    exactly_once = definition.guarantee == "exactly_once"
    copies: list[Copy] = []
    for at, came_through in enumerate(hops):
        if came_through >= limits.ROUTER_HOPS_MAX:
            continue
        record = run.record(at)
        if match is not None and not match.matches(record.tag):
            continue
        blob = _signed(definition, source, record) if exactly_once else record.blob
        copies.append(
            Copy(
                record.seq,
                record.ts,
                blob,
                accounted_bytes(blob),
                record.node if definition.preserve_node else None,
                record.tag if definition.preserve_tag else None,
                came_through + 1,
            )
        )
    return copies


def _signed(definition: RouterDef, source: TopicLog, record: StoredRecord) -> bytes:
    """The blob with what makes a second copy recognisable."""
    data, meta = split_blob(record.blob)
    epoch = epoch_of(source, record.seq)
    evidence = {
        "idempotency_key": f"router:{definition.name}:{source.id}:{epoch}:{record.seq}",
        "router": definition.name,
        "source_topic": source.name,
        "source_topic_id": source.id,
        "source_epoch": epoch,
        "source_seq": record.seq,
    }
    added = {"_topics_router": msgspec.json.encode(evidence)}
    return make_blob(data, with_keys(meta, added, keys_max=limits.META_KEYS_MAX))


def hops_of(topic: TopicLog, seqs: Sequence[int]) -> list[int]:
    """How many routers each of these records has come through. 0 where a restart has forgotten it."""
    found = dict.fromkeys(seqs, 0)
    left = iter(seqs)
    seq = next(left, None)
    for block in blocks_from(topic, seqs[0]) if seqs else ():
        while seq is not None and seq < block.first_seq:
            seq = next(left, None)
        while seq is not None and seq < block.next_seq:
            if isinstance(block, TailRun):
                found[seq] = block.flags[seq - block.first_seq] >> HOPS_SHIFT
            elif isinstance(block, Sealed) and block.hops is not None:
                found[seq] = block.hops[seq - block.first_seq]
            seq = next(left, None)
        if seq is None:
            break
    return list(found.values())


def batch_of(copies: Sequence[Copy]) -> WriteBatch:
    sizes = [copy.size for copy in copies]
    tags = [copy.tag for copy in copies]
    nodes = [copy.node for copy in copies]
    return WriteBatch(
        blobs=[copy.blob for copy in copies],
        sizes=sizes,
        tags=None if all(tag is None for tag in tags) else tags,
        nodes=None if all(node is None for node in nodes) else nodes,
        key=None,
        count=len(copies),
        total_bytes=sum(sizes),
        max_bytes=max(sizes),
    )


def admitted(dest: TopicLog, copies: list[Copy]) -> tuple[int, str | None]:
    """How many copies the destination takes, and what stops the next one: `cap` for ever, `full` for now."""
    config = dest.config
    records_left = bytes_left = None
    if config.discard == "reject":
        if config.cap_records:
            records_left = config.cap_records - dest.count - dest.staged_count
        if config.cap_bytes:
            bytes_left = config.cap_bytes - dest.bytes - dest.staged_bytes
    if not config.cap_bytes and records_left is None:
        return len(copies), None
    for at, copy in enumerate(copies):
        if config.cap_bytes and copy.size > config.cap_bytes:
            return at, "cap"
        if bytes_left is not None:
            bytes_left -= copy.size
        if (records_left is not None and at >= records_left) or (bytes_left is not None and bytes_left < 0):
            return at, "full"
    return len(copies), None
