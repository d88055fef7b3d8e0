"""Write batch: the records of one write as columns, checked against every per-record limit in one place.

`build_batch` serves HTTP, WebSocket and the embedded library alike. What always holds for a `WriteBatch`: 1..10000
records, each within its limits, each blob as `payload` describes it, lists of equal length. `sizes` are accounted
bytes: the texts of `data` and `meta`, nothing else.
"""

from collections.abc import Sequence
from operator import add, attrgetter
from typing import Literal, NamedTuple, Never, get_args

import msgspec

from topics import limits
from topics.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from topics.model.payload import META_MARK, make_blob, object_keys
from topics.model.position import Position

Text = bytes | msgspec.Raw
NULL = msgspec.Raw(b"null")
Meta = msgspec.Raw | msgspec.UnsetType
_META_BYTES_OF_TOO_MANY_KEYS = (limits.META_KEYS_MAX + 1) * 5  # `"":1,` is the least a key can cost


OnConflict = Literal["keep", "replace", "reject"]


class UniqueIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A unique key as sent; without `for_ms` it stands until its job is done."""

    key: str
    for_ms: int | None = None
    on_conflict: OnConflict = "keep"


class RecordIn(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One record as sent. `data` and `meta` are JSON texts already known to be well-formed. The last four are fields of
    a job, for queues only."""

    data: msgspec.Raw
    tag: str | None = None
    node: str | None = None
    meta: Meta = msgspec.UNSET  # null is the same as absent
    delay_ms: int | None = None
    deliver_at: int | None = None
    priority: int | None = None
    unique: str | UniqueIn | None = None


class JobField(NamedTuple):
    """What a record says about its job, checked."""

    delay_ms: int = 0
    deliver_at: int = 0
    priority: int = 0
    key: str | None = None
    for_ms: int = 0
    on_conflict: OnConflict = "keep"

    def ready_at(self, ts: int) -> int:
        """When a job appended at `ts` may be handed out; 0: at once."""
        return ts + self.delay_ms if self.delay_ms else self.deliver_at if self.deliver_at > ts else 0


class Expected(msgspec.Struct, frozen=True, gc=False):
    """What a write expects of its topic (`docs/spec/readers.md#sec-6`): its head, and the newest seqs of tags."""

    head: Position | None = None
    tags: tuple[tuple[str, int], ...] = ()


class WriteBatch(msgspec.Struct, frozen=True, gc=False):
    blobs: list[bytes]
    sizes: list[int]
    tags: list[bytes | None] | None  # None: no record has a tag
    nodes: list[bytes | None] | bytes | None  # bytes: all records have this one; None: no record has any
    key: bytes | None  # idempotency key
    count: int
    total_bytes: int
    max_bytes: int  # of the largest record
    jobs: list[JobField | None] | None = None  # None: no record has a field of a job
    expected: Expected | None = None


def build_batch(
    records: Sequence[RecordIn], *, default_node: str | None = None, idempotency_key: str | None = None
) -> WriteBatch:
    """Checks in the contract's order: number of records, key, then each record's tag, node, meta and size."""
    count = len(records)
    if not 0 < count <= limits.RECORDS_PER_WRITE_MAX:
        _refuse_count(count)
    try:
        key = None if idempotency_key is None else _key_bytes(idempotency_key)
        default = None if default_node is None else default_node.encode()
        batch = _single(records[0], default, key) if count == 1 else _plural(records, default, key)
    except UnicodeEncodeError:
        raise InvalidRequest("a tag, node or idempotency key is not valid Unicode") from None
    except AttributeError:
        raise InvalidRequest("a tag, node or idempotency key is not a string") from None
    if batch is None:
        _refuse_first_fault(records, default_node)
    fields = list(map(_JOB_FIELDS, records))
    if fields.count(_PLAIN) < count:
        jobs = [None if given == _PLAIN else _job_field(*given, at) for at, given in enumerate(fields)]
        return msgspec.structs.replace(batch, jobs=jobs)
    return batch


_JOB_FIELDS = attrgetter("delay_ms", "deliver_at", "priority", "unique")
_PLAIN = (None, None, None, None)


def _job_field(
    delay_ms: int | None, deliver_at: int | None, priority: int | None, unique: str | UniqueIn | None, at: int
) -> JobField:
    """Raises InvalidRequest that names the record and the field."""
    _check_range(delay_ms, 0, limits.JOB_DELAY_MS_MAX, at, "delay_ms")
    _check_range(deliver_at, 0, limits.U64_MAX >> 1, at, "deliver_at")
    _check_range(priority, -limits.JOB_PRIORITY_MAX, limits.JOB_PRIORITY_MAX, at, "priority")
    if delay_ms is not None and deliver_at is not None:
        raise InvalidRequest(f"records[{at}]: give delay_ms or deliver_at, not both")
    given = UniqueIn(key=unique) if isinstance(unique, str) else unique
    if given is None:
        return JobField(delay_ms or 0, deliver_at or 0, priority or 0)
    if not 0 < len(given.key.encode()) <= limits.UNIQUE_KEY_BYTES_MAX:
        raise InvalidRequest(f"records[{at}].unique: a key has 1 to {limits.UNIQUE_KEY_BYTES_MAX} bytes")
    _check_range(given.for_ms, 1, limits.JOB_DELAY_MS_MAX, at, "unique.for_ms")
    if given.on_conflict not in get_args(OnConflict):
        raise InvalidRequest(f"records[{at}].unique.on_conflict: must be keep, replace or reject")
    return JobField(delay_ms or 0, deliver_at or 0, priority or 0, given.key, given.for_ms or 0, given.on_conflict)


def _check_range(value: int | None, low: int, high: int, at: int, name: str) -> None:
    if value is None:
        return
    if type(value) is not int or not low <= value <= high:
        raise InvalidRequest(f"records[{at}].{name}: must be an integer from {low} to {high}")


def chosen(batch: WriteBatch, places: Sequence[int]) -> WriteBatch:
    """Some records of a batch with fields of jobs."""
    sizes = [batch.sizes[at] for at in places]
    return WriteBatch(
        [batch.blobs[at] for at in places],
        sizes,
        None if batch.tags is None else [batch.tags[at] for at in places],
        [batch.nodes[at] for at in places] if isinstance(batch.nodes, list) else batch.nodes,
        batch.key,
        len(places),
        sum(sizes),
        max(sizes),
        None if batch.jobs is None else [batch.jobs[at] for at in places],
    )


def stored_batch(
    texts: Sequence[tuple[bytes, bytes | None]],
    *,
    tags: list[bytes | None],
    nodes: list[bytes | None],
    jobs: list[JobField | None] | None = None,
) -> WriteBatch:
    """Records that we make ourselves from texts of data and meta. No limits apply: what came from a client passed them
    once, and what we add may go beyond them."""
    sizes = [len(data) + len(meta or b"") for data, meta in texts]
    return WriteBatch(
        blobs=[make_blob(data, meta) for data, meta in texts],
        sizes=sizes,
        tags=None if tags.count(None) == len(tags) else tags,
        nodes=nodes,
        key=None,
        count=len(texts),
        total_bytes=sum(sizes),
        max_bytes=max(sizes),
        jobs=jobs,
    )


def build_plain_batch(
    datas: Sequence[Text], *, default_node: str | None = None, idempotency_key: str | None = None
) -> WriteBatch:
    """`build_batch` of records that have nothing but data."""
    count = len(datas)
    sizes = list(map(len, datas))
    max_bytes = max(sizes, default=0)
    is_fine = 1 < count <= limits.RECORDS_PER_WRITE_MAX and max_bytes <= limits.RECORD_BYTES_MAX
    has_plain_key = idempotency_key is None or (isinstance(idempotency_key, str) and idempotency_key.isascii())
    is_plain = default_node is None and has_plain_key
    if not (is_fine and is_plain):
        records = [RecordIn(msgspec.Raw(data)) for data in datas]
        return build_batch(records, default_node=default_node, idempotency_key=idempotency_key)
    key = None if idempotency_key is None else _key_bytes(idempotency_key)
    return WriteBatch(_blobs_without_meta(datas), sizes, None, None, key, count, sum(sizes), max_bytes)


def _refuse_count(count: int) -> Never:
    if count == 0:
        raise InvalidRequest("a write needs at least one record")
    raise BatchTooLarge.of_records(count, max=limits.RECORDS_PER_WRITE_MAX)


def _key_bytes(key: str) -> bytes:
    encoded = key.encode()
    if len(encoded) > limits.IDEMPOTENCY_KEY_BYTES_MAX:
        raise InvalidRequest(f"an idempotency key has at most {limits.IDEMPOTENCY_KEY_BYTES_MAX} bytes")
    return encoded


def joined(batches: Sequence[WriteBatch]) -> WriteBatch:
    """Their records, one behind the other; no key is theirs."""
    blobs: list[bytes] = []
    sizes: list[int] = []
    tags: list[bytes | None] = []
    nodes: list[bytes | None] = []
    for batch in batches:
        blobs += batch.blobs
        sizes += batch.sizes
        tags += [None] * batch.count if batch.tags is None else batch.tags
        nodes += batch.nodes if isinstance(batch.nodes, list) else [batch.nodes] * batch.count
    count = len(sizes)
    return WriteBatch(
        blobs,
        sizes,
        None if tags.count(None) == count else tags,
        nodes[0] if nodes.count(nodes[0]) == count else nodes,
        None,
        count,
        sum(sizes),
        max(sizes),
    )


def _single(record: RecordIn, default: bytes | None, key: bytes | None) -> WriteBatch | None:
    """`_plural` for the commonest write of all, without the columns. None: some limit is broken."""
    data, meta = record.data, record.meta
    size = len(data)
    if isinstance(meta, msgspec.UnsetType) or meta == NULL:
        blob = b'{"d":%b}' % data
    else:
        size += len(meta)
        blob = b'{"d":%b,"m":%b}' % (data, meta)
        if not _metas_fit([meta]):
            return None
    tag = None if record.tag is None else record.tag.encode()
    node = default if record.node is None else record.node.encode()
    if size > limits.RECORD_BYTES_MAX or (tag is not None and len(tag) > limits.TAG_BYTES_MAX):
        return None
    if node is not None and not (_node_fits(node) and _node_fits(default)):
        return None
    return WriteBatch([blob], [size], None if tag is None else [tag], node, key, 1, size, size)


def _plural(records: Sequence[RecordIn], default: bytes | None, key: bytes | None) -> WriteBatch | None:
    """Whole columns at a time, checked by their maxima. None: some limit is broken; which one is for the slow path."""
    count = len(records)
    datas = [record.data for record in records]
    metas = _meta_column([record.meta for record in records])
    if metas is None:
        blobs, sizes = _blobs_without_meta(datas), list(map(len, datas))
    elif _metas_fit(metas):
        blobs, sizes = _blobs_with_meta(datas, metas)
    else:
        return None
    tags = _tag_column([record.tag for record in records])
    nodes = _node_column([record.node for record in records], default)
    max_bytes = max(sizes)
    if max_bytes > limits.RECORD_BYTES_MAX or not (_tags_fit(tags) and _nodes_fit(nodes) and _node_fits(default)):
        return None
    return WriteBatch(blobs, sizes, tags, nodes, key, count, sum(sizes), max_bytes)


def _meta_column(metas: list[Meta]) -> list[Text] | None:
    """Empty where there is none; None if no record has any."""
    absent = metas.count(msgspec.UNSET)
    if absent == len(metas):
        return None
    if absent == 0 and NULL not in metas:
        return metas  # type: ignore[return-value]  # every one is a text
    return [b"" if isinstance(meta, msgspec.UnsetType) or meta == NULL else meta for meta in metas]


def _join_blobs(datas: Sequence[Text], metas: Sequence[Text], marks: list[bytes]) -> list[bytes]:
    """All blobs from one join: a NUL cannot occur in JSON text, so one split takes the place of a loop."""
    pieces: list[Text] = [b'}\0{"d":', b"", b"", b""] * len(datas)
    pieces[1::4] = datas
    pieces[2::4] = marks
    pieces[3::4] = metas
    pieces[0] = b'{"d":'
    pieces.append(b"}")
    return _checked(b"".join(pieces).split(b"\0"), len(datas))


def _checked(blobs: list[bytes], count: int) -> list[bytes]:
    if len(blobs) != count:  # only an embedded caller can get here, with a text that is not JSON
        raise InvalidRequest("a payload holds a NUL byte and is not JSON")
    return blobs


def _blobs_without_meta(datas: Sequence[Text]) -> list[bytes]:
    blobs = (b'{"d":' + b'}\0{"d":'.join(datas) + b"}").split(b"\0")
    return _checked(blobs, len(datas))


def _blobs_with_meta(datas: list[msgspec.Raw], metas: list[Text]) -> tuple[list[bytes], list[int]]:
    marks = [META_MARK if meta else b"" for meta in metas]
    sizes = list(map(add, map(len, datas), map(len, metas)))
    return _join_blobs(datas, metas, marks), sizes


def _tag_column(tags: list[str | None]) -> list[bytes | None] | None:
    absent = tags.count(None)
    if absent == len(tags):
        return None
    return [None if tag is None else tag.encode() for tag in tags]


def _node_column(nodes: list[str | None], default: bytes | None) -> list[bytes | None] | bytes | None:
    absent = nodes.count(None)
    if absent == len(nodes):
        return default
    first = nodes[0]
    if first is not None and nodes.count(first) == len(nodes):
        return first.encode()
    return [default if node is None else node.encode() for node in nodes]


def _node_fits(node: bytes | None) -> bool:
    return node is None or len(node) <= limits.NODE_BYTES_MAX


def _tags_fit(tags: list[bytes | None] | None) -> bool:
    return tags is None or max(map(len, filter(None, tags)), default=0) <= limits.TAG_BYTES_MAX


def _nodes_fit(nodes: list[bytes | None] | bytes | None) -> bool:
    if isinstance(nodes, list):
        return max(map(len, filter(None, nodes)), default=0) <= limits.NODE_BYTES_MAX
    return _node_fits(nodes)


def _metas_fit(metas: Sequence[Text]) -> bool:
    longest = max(map(len, metas))
    if longest < _META_BYTES_OF_TOO_MANY_KEYS:
        return True
    return longest <= limits.META_BYTES_MAX and max(map(_key_count, metas)) <= limits.META_KEYS_MAX


def _key_count(meta: Text) -> int:
    return 0 if len(meta) < _META_BYTES_OF_TOO_MANY_KEYS else object_keys(bytes(meta))


def _refuse_first_fault(records: Sequence[RecordIn], default_node: str | None) -> Never:
    """Some record breaks a limit; the first one in order, by the first rule it breaks, decides the answer."""
    for at, record in enumerate(records):
        _check_record(record, default_node, at)
    # No record does: it is the batch's own node, which every record overrides.
    raise InvalidRequest(f"a node has at most {limits.NODE_BYTES_MAX} bytes")


def _check_record(record: RecordIn, default_node: str | None, at: int) -> None:
    node = default_node if record.node is None else record.node
    if record.tag is not None and len(record.tag.encode()) > limits.TAG_BYTES_MAX:
        raise InvalidRequest(f"records[{at}]: a tag has at most {limits.TAG_BYTES_MAX} bytes")
    if node is not None and len(node.encode()) > limits.NODE_BYTES_MAX:
        raise InvalidRequest(f"records[{at}]: a node has at most {limits.NODE_BYTES_MAX} bytes")
    size = len(record.data)
    if not isinstance(record.meta, msgspec.UnsetType) and record.meta != NULL:
        size += len(record.meta)
        _check_meta(record.meta, at)
    if size > limits.RECORD_BYTES_MAX:
        raise RecordTooLarge(f"records[{at}]: data and meta have at most {limits.RECORD_BYTES_MAX} bytes")


def _check_meta(meta: msgspec.Raw, at: int) -> None:
    if len(meta) > limits.META_BYTES_MAX:
        raise InvalidRequest(f"records[{at}]: meta has at most {limits.META_BYTES_MAX} bytes")
    if _key_count(meta) > limits.META_KEYS_MAX:
        raise InvalidRequest(f"records[{at}]: meta has at most {limits.META_KEYS_MAX} keys")
