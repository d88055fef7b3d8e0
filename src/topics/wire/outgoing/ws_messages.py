"""WebSocket messages: the client's commands, decoded, and the server's frames, encoded.

Every text that does not decode into a command gets the same answer, `invalid_json` without a request id, whatever was
wrong with it. `request_id` is carried as text, like a payload. Called by the WebSocket session of api and the client.
"""

import msgspec
from msgspec.structs import force_setattr

from topics import limits
from topics.errors import InvalidRequest, TopicsError
from topics.model.config import U64, ConfigPatch, check_u64
from topics.model.names import TopicName
from topics.model.record import RecordIn, WriteBatch, build_batch
from topics.model.results import Appended, WatchStart
from topics.wire.incoming.json import BodyDecoder
from topics.wire.incoming.requests import (
    U32,
    FromSeq,
    NodeFilter,
    Predicate,
    TagSeqs,
    TopicStart,
    check_one_start,
    expecting,
)
from topics.wire.outgoing.replies import append_outcome, seqs_field

NO_REQUEST_ID = msgspec.Raw(b"null")
INVALID_JSON = "invalid_json"
UNSUPPORTED_MESSAGE = "unsupported_message"
SHUTTING_DOWN = "server_shutting_down"
SLOW_CONSUMER = "slow_consumer"
_encode = msgspec.json.Encoder().encode


# --- commands --------------------------------------------------------------------------------------------------------


class Subscribe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="subscribe"):
    request_id: msgspec.Raw = NO_REQUEST_ID
    topic: TopicName | None = None
    topics: dict[TopicName, TopicStart] = {}
    from_seq: FromSeq = 0
    tail: bool = False
    node: NodeFilter = None
    limit: U32 = limits.WS_LIMIT.default
    max_batch_bytes: U64 = limits.WS_BATCH_BYTES.default
    include_data: bool = True
    include_tags: bool = False
    include_meta: bool = True
    lenient: bool = False
    from_ts: U64 | None = None
    cursor: str | None = None
    tag: Predicate = None

    def __post_init__(self) -> None:
        check_one_start(self.from_seq, self.from_ts, self.cursor)
        check_u64(self.max_batch_bytes)
        force_setattr(self, "limit", limits.WS_LIMIT(self.limit))
        force_setattr(self, "max_batch_bytes", limits.WS_BATCH_BYTES(self.max_batch_bytes))

    def starts(self) -> dict[str, TopicStart]:
        """All topics with where to begin; of a name given both ways the entry in `topics` counts."""
        single = (
            {} if self.topic is None else {self.topic: TopicStart(self.from_seq, self.tail, self.from_ts, self.cursor)}
        )
        if not (starts := single | self.topics):
            raise InvalidRequest("a subscription names at least one topic")
        return starts


class Unsubscribe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="unsubscribe"):
    request_id: msgspec.Raw = NO_REQUEST_ID
    topic: TopicName | None = None
    topics: list[TopicName] = []

    def names(self) -> list[str]:
        """Each name once, in the order given."""
        single = [] if self.topic is None else [self.topic]
        if not (names := single + self.topics):
            raise InvalidRequest("at least one topic must be named")
        return list(dict.fromkeys(names))


class Publish(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="publish"):
    topic: TopicName
    records: list[RecordIn]
    request_id: msgspec.Raw = NO_REQUEST_ID
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: ConfigPatch | None = None
    disable_backpressure: bool = False
    return_seqs: bool = True
    if_head: FromSeq | None = None
    if_tag_seq: TagSeqs | None = None
    traceparent: str | None = None

    def batch(self) -> WriteBatch:
        batch = build_batch(self.records, default_node=self.node, idempotency_key=self.idempotency_key)
        return expecting(batch, self.if_head, self.if_tag_seq)


class Ping(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op", tag="ping"):
    request_id: msgspec.Raw = NO_REQUEST_ID


Command = Subscribe | Unsubscribe | Publish | Ping

decode_command = BodyDecoder[Command](Command, carries_payloads=True)
"""Raises InvalidRequest, which on a WebSocket is `error_frame(NO_REQUEST_ID, INVALID_JSON, ...)`."""


# --- frames ----------------------------------------------------------------------------------------------------------

# The first field of messages that are pushed; the rest of them is made by `live_json`.
RECORD = b'"op":"record",'
CAUGHT_UP = b'"op":"caught_up",'
TOMBSTONE = b'"op":"tombstone",'
TOPIC_DELETED = b'"op":"topic_deleted",'
DEFERRED = b'"op":"deferred",'
RESUMED = b'"op":"resumed",'


def subscribed_frame(request_id: msgspec.Raw, topics: dict[str, WatchStart]) -> bytes:
    return b'{"op":"subscribed","request_id":%b,"topics":%b}' % (request_id, _encode(topics))


def unsubscribed_frame(request_id: msgspec.Raw, topics: list[str]) -> bytes:
    return b'{"op":"unsubscribed","request_id":%b,"topics":%b}' % (request_id, _encode(topics))


def ack_frame(request_id: msgspec.Raw, topic: str, done: Appended, *, return_seqs: bool, performance: bytes) -> bytes:
    """Unlike the HTTP answer this one shows `seqs` as null when they were not asked for."""
    return b'{"op":"ack","request_id":%b,"topic":"%b",%b,"performance":%b}' % (
        request_id,
        topic.encode(),
        append_outcome(done, seqs=seqs_field(done) if return_seqs else b',"seqs":null'),
        performance,
    )


def pong_frame(request_id: msgspec.Raw) -> bytes:
    return b'{"op":"pong","request_id":%b}' % request_id


def error_frame(request_id: msgspec.Raw | None, code: str, message: str) -> bytes:
    """`request_id` None leaves the key out: for binary messages and at shutdown."""
    shown = b"" if request_id is None else b'"request_id":%b,' % request_id
    return b'{"op":"error",%b"code":%b,"message":%b}' % (shown, _encode(code), _encode(message))


def refusal_frame(request_id: msgspec.Raw, error: TopicsError) -> bytes:
    """A command that failed: the code that HTTP would have shown."""
    return error_frame(request_id, error.code, error.message)
