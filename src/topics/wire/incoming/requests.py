"""Request bodies: one frozen struct per body, one prebuilt decoder each.

What always holds for a decoded request: types and ranges are checked, and clamped fields already hold their effective
value. What the contract checks later than parsing (names, emptiness, counts that have a code of their own) is a method,
so that each endpoint calls it at its place in the order. Structs forbid unknown fields only so that the decoder notices
them: a body that has some is taken, and the answer names them (`second_look`). Queue calls are in `queue_requests`.
Used by api and, for encoding, by the client.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec.structs import force_setattr, replace

from topics import limits
from topics.errors import InvalidRequest
from topics.model.config import U64, ConfigPatch, check_u64
from topics.model.names import TagMatch, TopicName, parse_match
from topics.model.position import TOKEN_PATTERN, position_of
from topics.model.record import Expected, RecordIn, WriteBatch, build_batch, build_plain_batch
from topics.model.router import Guarantee, RouterDef
from topics.wire.incoming.json import REFUSALS, SHORTEST_DEEP_TEXT, BodyDecoder, Unknown, explain, is_too_deep

U32 = Annotated[int, msgspec.Meta(ge=0, le=limits.U32_MAX)]
FromSeq = U64 | Annotated[str, msgspec.Meta(extra_json_schema={"pattern": TOKEN_PATTERN})]
"""A seq, or a position."""
NodeFilter = str | list[str] | None
Predicate = str | list[str] | None


def node_set(given: NodeFilter) -> frozenset[bytes] | None:
    """The nodes whose records a reader does not want; None if it wants all."""
    if not given and given != "":
        return None
    return frozenset(node.encode() for node in ([given] if isinstance(given, str) else given))


def tag_match(given: Predicate) -> TagMatch | None:
    """The tags a reader wants; None if it wants all. Raises InvalidRequest."""
    if given is None:
        return None
    if not given:
        raise InvalidRequest("a tag must not be empty")
    return parse_match(given)


def tag_prefix(text: str) -> bytes:
    """A prefix of tags; the star that ends one elsewhere is left out."""
    return text.removesuffix("*").encode()


def check_one_start(from_seq: int | str, from_ts: int | None, cursor: str | None) -> None:
    """Raises ValueError if a read begins at two places; a `from_seq` of 0 is none."""
    check_from_seq(from_seq)
    check_u64(from_ts or 0)
    if (from_seq != 0) + (from_ts is not None) + (cursor is not None) > 1:
        raise ValueError("a read begins at one of from_seq, from_ts and cursor")


def check_from_seq(from_seq: int | str) -> None:
    """Raises ValueError for a text that is no position, and for what is no u64."""
    check_u64(position_of(from_seq).seq)


TagSeqs = dict[str, U64]


def expecting(batch: WriteBatch, if_head: int | str | None, if_tag_seq: TagSeqs | None) -> WriteBatch:
    """The write, with what it expects of its topic. Raises InvalidRequest."""
    if if_head is None and if_tag_seq is None:
        return batch
    if batch.jobs is not None:
        raise InvalidRequest("a write whose records have fields of jobs cannot say which version it expects")
    if if_tag_seq is not None and not 0 < len(if_tag_seq) <= limits.EXPECTED_TAGS_MAX:
        raise InvalidRequest(f"if_tag_seq names 1 to {limits.EXPECTED_TAGS_MAX} tags")
    try:
        head = None if if_head is None else position_of(if_head)
        check_u64(0 if head is None else head.seq, *(if_tag_seq or {}).values())
    except ValueError as error:
        raise InvalidRequest(f"if_head, if_tag_seq: {error}") from None
    return replace(batch, expected=Expected(head, tuple((if_tag_seq or {}).items())))


# --- write, read, delete ---------------------------------------------------------------------------------------------


class WriteRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    records: list[RecordIn]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: ConfigPatch | None = None
    disable_backpressure: bool = False
    if_head: FromSeq | None = None
    if_tag_seq: TagSeqs | None = None

    def batch(self, header_key: str | None = None) -> WriteBatch:
        """Checks every record; `header_key` is the `Idempotency-Key` header, which the body's key beats."""
        key = header_key if self.idempotency_key is None else self.idempotency_key
        batch = build_batch(self.records, default_node=self.node, idempotency_key=key)
        return expecting(batch, self.if_head, self.if_tag_seq)


class PayloadWrite(WriteRequest, frozen=True, forbid_unknown_fields=True):
    """A write whose records are payloads and nothing else."""

    datas: list[msgspec.Raw] = []

    def batch(self, header_key: str | None = None) -> WriteBatch:
        return build_plain_batch(self.datas, idempotency_key=header_key)


class DiffRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    from_seq: FromSeq = 0
    limit: U32 = limits.DIFF_LIMIT.default
    node: NodeFilter = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: U32 = limits.DIFF_WAIT_MS.default
    max_batch_bytes: U64 = limits.DIFF_BATCH_BYTES.default
    from_ts: U64 | None = None
    cursor: str | None = None
    tag: Predicate = None

    def __post_init__(self) -> None:
        check_one_start(self.from_seq, self.from_ts, self.cursor)
        check_u64(self.max_batch_bytes)
        force_setattr(self, "limit", limits.DIFF_LIMIT(self.limit))
        force_setattr(self, "wait_ms", limits.DIFF_WAIT_MS(self.wait_ms))
        force_setattr(self, "max_batch_bytes", limits.DIFF_BATCH_BYTES(self.max_batch_bytes))


TableColumn = Literal["seq", "ts", "tag", "node", "meta", "data"]


class TableRequest(DiffRequest, frozen=True, forbid_unknown_fields=True):
    """A diff that is answered with a table: pages may be larger, and have the columns that are asked for."""

    columns: list[TableColumn] | None = None

    def __post_init__(self) -> None:
        limit, max_batch_bytes = limits.TABLE_LIMIT(self.limit), limits.TABLE_BATCH_BYTES(self.max_batch_bytes)
        super().__post_init__()
        force_setattr(self, "limit", limit)
        force_setattr(self, "max_batch_bytes", max_batch_bytes)
        if self.columns is not None and not 0 < len(self.columns) == len(set(self.columns)):
            raise ValueError("columns names at least one column, and each once")


class DeleteRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    before_seq: U64 | None = None
    match: Predicate = None

    def __post_init__(self) -> None:
        check_u64(self.before_seq or 0)

    def selector(self) -> tuple[int | None, TagMatch | None]:
        if self.before_seq is None and self.match is None:
            raise InvalidRequest("a delete needs before_seq or match")
        return self.before_seq, None if self.match is None else parse_match(self.match)


# --- routers, watch --------------------------------------------------------------------------------------------------


class PutRouterRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: TopicName
    dest: TopicName
    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: bool = True
    filter: Predicate = None
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"

    def definition(self, name: str) -> RouterDef:
        """Raises InvalidRequest for a bad filter; names are for the lifecycle rules."""
        return RouterDef(
            name=name,
            source=self.source,
            dest=self.dest,
            preserve_node=self.preserve_node,
            preserve_tag=self.preserve_tag,
            create_dest=self.create_dest,
            allow_cycle=self.allow_cycle,
            guarantee=self.guarantee,
            filter=None if self.filter is None else parse_match(self.filter),
        )


class TopicStart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where to begin in one topic; `tail` beats the others."""

    from_seq: FromSeq = 0
    tail: bool = False
    from_ts: U64 | None = None
    cursor: str | None = None

    def __post_init__(self) -> None:
        check_one_start(self.from_seq, self.from_ts, self.cursor)


class WatchRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topics: dict[TopicName, TopicStart]
    node: NodeFilter = None
    limit: U32 = limits.WATCH_LIMIT.default
    max_batch_bytes: U64 = limits.WATCH_BATCH_BYTES.default
    heartbeat_ms: U64 = limits.HEARTBEAT_MS.default
    include_meta: bool = True
    include_tags: bool = False
    include_data: bool = True
    consistency: Literal["eventual", "strong"] = "eventual"
    tag: Predicate = None

    def __post_init__(self) -> None:
        check_u64(self.max_batch_bytes, self.heartbeat_ms)
        if not 0 < len(self.topics) <= limits.WATCH_TOPICS_MAX:
            raise ValueError(f"a watch names 1 to {limits.WATCH_TOPICS_MAX} topics")
        force_setattr(self, "limit", limits.WATCH_LIMIT(self.limit))
        force_setattr(self, "max_batch_bytes", limits.WATCH_BATCH_BYTES(self.max_batch_bytes))

    def heartbeat(self, *, low_ms: int | None = None) -> int:
        """The one clamp that a setting can widen (`TOPICS_TEST_MIN_HEARTBEAT_MS`), so it waits for the session."""
        clamp = limits.HEARTBEAT_MS if low_ms is None else limits.HEARTBEAT_MS.with_low(low_ms)
        return clamp(self.heartbeat_ms)


class TokenRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A topic is a name, or ends in `*` and is a prefix; scopes are cut to those of the key in any case."""

    topics: list[TopicName] | None = None
    ttl_ms: U64 = limits.TOKEN_TTL_MS.default
    scopes: list[Literal["read", "write", "delete", "admin"]] | None = None

    def __post_init__(self) -> None:
        check_u64(self.ttl_ms)
        force_setattr(self, "ttl_ms", limits.TOKEN_TTL_MS(self.ttl_ms))
        if self.topics is not None and not 0 < len(self.topics) <= limits.TOKEN_TOPICS_MAX:
            raise ValueError(f"a token names 1 to {limits.TOKEN_TOPICS_MAX} topics, or none for all of its key")
        if self.scopes is not None and not self.scopes:
            raise ValueError("a token has at least one scope")


class _WriteDecoder(BodyDecoder[WriteRequest]):
    """Looking for brackets takes longer than decoding, so most long bodies are shown to be shallow without it.

    A body that has no unknown and no repeated key has all its depth in its payloads, and short ones have little."""

    def __init__(self) -> None:
        super().__init__(WriteRequest, carries_payloads=True)
        self._decode_plain = msgspec.json.Decoder(_PlainWrite).decode

    def __call__(self, body: bytes, unknown: list[Unknown] | None = None) -> WriteRequest:
        datas = decode_datas(body)
        if datas is not None:
            return PayloadWrite([], datas=datas)
        if len(body) >= SHORTEST_DEEP_TEXT and body.isascii() and b"\\" not in body:
            try:
                plain = self._decode_plain(body)
            except REFUSALS:
                pass  # unusual, or wrong: it gets the usual look
            else:
                if plain.is_shallow(body):
                    return plain.request()
        return BodyDecoder.__call__(self, body, unknown)


class _PlainRecord(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A `RecordIn` that has no `meta` and no field of a job."""

    data: msgspec.Raw
    tag: str | None = None
    node: str | None = None
    meta: ClassVar[msgspec.UnsetType] = msgspec.UNSET
    delay_ms: ClassVar[None] = None
    deliver_at: ClassVar[None] = None
    priority: ClassVar[None] = None
    unique: ClassVar[None] = None


class _PlainRecords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Records, and nothing that we do not know."""

    records: list[_PlainRecord]

    def is_shallow(self, body: bytes) -> bool:
        """Whether its depth is within the limit; False if that is not clear."""
        datas = [record.data for record in self.records]
        is_each_key_once = body.count(b'"data"') == len(datas)
        return is_each_key_once and max(map(len, datas), default=0) <= _SHALLOW_BYTES


class _PlainWrite(_PlainRecords, frozen=True, forbid_unknown_fields=True):
    """A `WriteRequest` without `config`, and without anything we do not know."""

    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    disable_backpressure: bool = False

    def request(self) -> WriteRequest:
        return WriteRequest(
            self.records,  # type: ignore[arg-type]
            node=self.node,
            idempotency_key=self.idempotency_key,
            create=self.create,
            disable_backpressure=self.disable_backpressure,
        )


class _Records(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    records: list[RecordIn]


_decode_records = msgspec.json.Decoder(_Records).decode
_decode_plain_records = msgspec.json.Decoder(_PlainRecords).decode


def decode_records(body: bytes) -> Sequence[RecordIn] | None:
    """The records of a body that is nothing but records; None for any other body, bad ones included."""
    if not (body.startswith(b'{"records"') and body.endswith(b"]}")):
        return None
    if len(body) >= SHORTEST_DEEP_TEXT and body.isascii() and b"\\" not in body:
        try:
            plain = _decode_plain_records(body)
        except REFUSALS:
            pass
        else:
            return plain.records if plain.is_shallow(body) or not is_too_deep(body) else None  # type: ignore[return-value]
    try:
        records = _decode_records(body).records
        if not body.isascii():
            body.decode()
    except REFUSALS:
        return None
    return None if len(body) >= SHORTEST_DEEP_TEXT and is_too_deep(body) else records


_KEY_FIELD = b'],"idempotency_key":"'


def decode_keyed(body: bytes) -> tuple[Sequence[RecordIn], str] | None:
    """The records and the key of a body that is records and behind them a key, as our clients write it; None for any
    other body. What is left without the key must be whole: then the key is a field of the body and not of a payload."""
    at = body.rfind(_KEY_FIELD)
    if at < 0 or not body.endswith(b'"}'):
        return None
    key = body[at + len(_KEY_FIELD) : -2]
    if not key.replace(b"-", b"").isalnum():  # of ASCII, since these are bytes
        return None
    records = decode_records(body[: at + 1] + b"}")
    return None if records is None else (records, key.decode())


class _DataRecord(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    data: msgspec.Raw


class _DataRecords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    records: list[_DataRecord]


_decode_data_records = msgspec.json.Decoder(_DataRecords).decode


def decode_datas(body: bytes) -> list[msgspec.Raw] | None:
    """The payloads of a long body that is nothing but records which have nothing else; None for any other body."""
    if len(body) < LONG_BODY_BYTES or not body.startswith(b'{"records":[{"data":') or not body.isascii():
        return None
    try:
        datas = [record.data for record in _decode_data_records(body).records]
    except REFUSALS:
        return None
    is_tight = len(body) == len(b'{"records":[]}') + len(b'{"data":},') * len(datas) - 1 + sum(map(len, datas))
    return datas if is_tight and max(map(len, datas)) <= _SHALLOW_BYTES else None


LONG_BODY_BYTES = 1024
"""Of a short one, finding out what else its records have costs as much as looking at it."""
_SHALLOW_BYTES = SHORTEST_DEEP_TEXT - 2 * 3 - 1  # three levels are around a payload
decode_config = BodyDecoder[ConfigPatch](ConfigPatch)
decode_write = _WriteDecoder()
decode_diff = BodyDecoder[DiffRequest](DiffRequest)
decode_table = BodyDecoder[TableRequest](TableRequest)
decode_delete = BodyDecoder[DeleteRequest](DeleteRequest)
decode_router = BodyDecoder[PutRouterRequest](PutRouterRequest)
decode_token = BodyDecoder[TokenRequest](TokenRequest)
decode_watch = BodyDecoder[WatchRequest](WatchRequest)


# --- requests of a library door --------------------------------------------------------------------------------------

T = TypeVar("T")


def checked(kind: type[T], **fields: Any) -> T:
    """A request from Python values, by the same rules as from a body. Whatever may end up in the log goes through here:
    a value of a wrong type would be written, and could not be read by the next start."""
    try:
        request = msgspec.convert(fields, kind)
        msgspec.json.encode(request)  # only Unicode can be
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(explain(error, kind)) from None
    return request


def predicate(match: str | list[str] | TagMatch | None) -> Predicate:
    return match.to_json() if isinstance(match, TagMatch) else match
