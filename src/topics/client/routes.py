"""Routes: every endpoint that a verb uses, with its request, and how its answer is read. No I/O.

A verb checks its arguments into a request struct and gives it to a door together with its route (`verbs.Door`). A
server's door makes a call of the two: path, query or body, and whether the call may be repeated. Repeatable is what
`docs/spec/http-api.md#sec-23-4` calls safe; a write is, because it always carries an idempotency key.

Payload texts may hold escapes of lone surrogates, which msgspec refuses to read. Such an answer is read once more with
these escapes spelled in another way, and they are put back into the payloads: byte for byte what was stored.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec.structs import force_setattr

from topics import limits
from topics.client.arrow_pages import TablePage, read_page
from topics.client.transport.http_messages import JSON, ClientCall
from topics.errors import InvalidRequest
from topics.model.config import TopicConfig
from topics.model.paging import RecordResult, end_of, refuse_overlap
from topics.model.position import parse_token
from topics.model.results import (
    AckResult,
    AppendResult,
    CancelResult,
    ClaimResult,
    CursorDropped,
    CursorPage,
    CursorState,
    DeleteResult,
    DeleteTopicResult,
    ExtendResult,
    Job,
    JobPage,
    JobState,
    LatestResult,
    MoveResult,
    NackResult,
    PauseResult,
    PutTopicResult,
    ReadResult,
    Record,
    RedriveResult,
    RetryResult,
    TopicPage,
    TopicState,
    WatchResult,
    WorkerPage,
)
from topics.model.router import DeleteRouterResult, RouterPage, RouterState
from topics.model.schedules.schedule_answers import ScheduleDropped, SchedulePage, ScheduleRun, ScheduleState
from topics.model.values import Event, Json, job_fields, json_text, refuse_bytes
from topics.wire.access.stream_tokens import StreamToken
from topics.wire.incoming.cursor_requests import CommitRequest, PutCursorRequest
from topics.wire.incoming.queue_requests import (
    AckRequest,
    ClaimRequest,
    ExtendRequest,
    MoveRequest,
    NackRequest,
    RedriveRequest,
    SeqsRequest,
)
from topics.wire.incoming.request_head import ARROW_MEDIA
from topics.wire.incoming.requests import (
    DeleteRequest,
    DiffRequest,
    FromSeq,
    PutRouterRequest,
    TableRequest,
    TagSeqs,
    TokenRequest,
    WatchRequest,
)
from topics.wire.incoming.schedule_requests import PutScheduleRequest

T = TypeVar("T")
Q = TypeVar("Q")
S = TypeVar("S", Record, Job)

_encode = msgspec.json.Encoder().encode


# --- answers ---------------------------------------------------------------------------------------------------------

# Whatever follows a backslash belongs to it, so an escaped backslash cannot hide or fake an escape.
_ESCAPE = re.compile(rb"\\(?:u([dD][89abcdefABCDEF][0-9a-fA-F]{2})|(.))", re.DOTALL)


def decoder_of(kind: type[T]) -> Callable[[bytes], T]:
    return msgspec.json.Decoder(kind).decode


def payload_decoder(kind: type[T], field: str) -> Callable[[bytes], T]:
    """A decoder of an answer whose `field` is a record, or a list of records or jobs. It takes escapes of lone
    surrogates too."""
    strict = decoder_of(kind)

    def decode(body: bytes) -> T:
        try:
            return strict(body)
        except msgspec.DecodeError:
            text, word = _disguised(body)
        found = strict(text)
        given = getattr(found, field)
        items = [_restored(item, word) for item in given] if isinstance(given, list) else _restored(given, word)
        return msgspec.structs.replace(found, **{field: items})  # type: ignore[type-var]

    return decode


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


class RecordBatch(msgspec.Struct, frozen=True):
    """A `record` frame of a watch stream."""

    topic: str
    records: list[Record]
    to_seq: int


decode_batch = payload_decoder(RecordBatch, "records")
_decode_page = payload_decoder(ReadResult, "records")
_decode_latest = payload_decoder(LatestResult, "records")
_decode_record = payload_decoder(RecordResult, "record")
_decode_put = decoder_of(PutTopicResult)
_decode_dropped = decoder_of(DeleteTopicResult)
_decode_router_gone = decoder_of(DeleteRouterResult)


def _page(body: bytes) -> ReadResult:
    page = _decode_page(body)
    stamped(page.records, end_of(page).epoch)
    return page


def _latest(body: bytes) -> LatestResult:
    page = _decode_latest(body)
    stamped(page.records, parse_token(page.position).epoch)
    return page


def stamped(records: Sequence[Record], epoch: int | None) -> Sequence[Record]:
    """The same records, each with the epoch that was told once for all of them. Nobody has seen them yet."""
    if epoch is not None:
        deque(map(force_setattr, records, repeat("epoch"), repeat(epoch)), maxlen=0)
    return records


def _record(body: bytes) -> Record:
    found = _decode_record(body)
    stamped((found.record,), parse_token(found.position).epoch)
    return found.record


def _config(body: bytes) -> TopicConfig:
    return _decode_put(body).config


def _dropped(body: bytes) -> bool:
    return _decode_dropped(body).deleted


def _router_gone(body: bytes) -> bool:
    return _decode_router_gone(body).deleted


def _document(body: bytes) -> dict[str, Any]:
    return msgspec.json.decode(body, type=dict[str, Any])


def _manifest(body: bytes) -> dict[str, Any]:
    told = _document(body)
    refuse_overlap(told["topic"], ((segment["first_seq"], segment["last_seq"]) for segment in told["segments"]))
    return told


# --- routes ----------------------------------------------------------------------------------------------------------


def _always(_: object) -> bool:
    return True


def _never(_: object) -> bool:
    return False


class Route(Generic[Q, T]):
    """One endpoint: takes a request `Q`, answers with a `T`. `{}` in its path is the name of a topic or router, a
    second one that of a part of it, such as a cursor."""

    __slots__ = ("_accept", "_decode", "_method", "_path", "_repeatable")

    def __init__(
        self,
        request: type[Q],
        method: bytes,
        path: str,
        decode: Callable[[bytes], T],
        *,
        repeatable: Callable[[Q], bool] = _always,
        accept: bytes = JSON,
    ) -> None:
        self._accept = accept
        self._method = method
        self._path = path
        self._decode = decode
        self._repeatable = repeatable

    def call(self, name: str, request: Q, part: str = "") -> ClientCall[T]:
        """The call of a server that this request is. `part` is the second `{}` of the path."""
        target = _target(self._path, name, part)
        if request is None:
            return ClientCall(self._method, target, self._decode, repeatable=self._repeatable(request))
        if isinstance(request, Query):
            return ClientCall(self._method, f"{target}?{request.text()}", self._decode)
        return ClientCall(
            self._method,
            target,
            self._decode,
            body=request if isinstance(request, bytes) else _encode(request),
            repeatable=self._repeatable(request),
            wait_ms=request.wait_ms if isinstance(request, DiffRequest | ClaimRequest) else 0,
            accept=self._accept,
        )


@lru_cache(4096)
def _target(path: str, name: str, part: str = "") -> str:
    target = path
    for given in (name, part)[: path.count("{}")]:
        if not given:
            raise InvalidRequest("a name must not be empty")
        try:
            target = target.replace("{}", quote(given, safe=":->"), 1)
        except (UnicodeEncodeError, TypeError):
            raise InvalidRequest(f"{given!r} is no name") from None
    return target


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A request that travels in the query of its URL. A field that is None is left out."""

    def text(self) -> str:
        fields = msgspec.structs.asdict(self)
        return urlencode({name: _query_value(value) for name, value in fields.items() if value is not None})


def _query_value(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


class StateQuery(Query, frozen=True, kw_only=True):
    touch: bool


class NewestQuery(Query, frozen=True, kw_only=True):
    tag: str | None


class DropQuery(Query, frozen=True, kw_only=True):
    if_empty: bool


class LatestQuery(Query, frozen=True, kw_only=True):
    """One page of a table; `after` is the `next` of the page before it."""

    tag: str = ""
    after: str | None = None
    limit: int = limits.DIFF_LIMIT.high


class ListQuery(Query, frozen=True, kw_only=True):
    """One page of a list; `cursor` is what the page before it gave, empty for the first."""

    prefix: str
    source: str | None = None
    dest: str | None = None
    page_size: int = limits.PAGE_SIZE.high
    cursor: str = ""


class ScheduleQuery(Query, frozen=True, kw_only=True):
    """One page of the schedules."""

    prefix: str
    topic: str | None = None
    page_size: int = limits.PAGE_SIZE.high
    cursor: str = ""


class JobQuery(Query, frozen=True, kw_only=True):
    """One page of the jobs of a queue."""

    state: JobState | None = None
    tag: str | None = None
    page_size: int = limits.PAGE_SIZE.high
    cursor: str = ""


NOTHING = type(None)

STATE = Route(StateQuery, b"GET", "/v0/topics/{}", decoder_of(TopicState))
CONFIGURE = Route(bytes, b"PUT", "/v0/topics/{}", _config)
DROP = Route(DropQuery, b"DELETE", "/v0/topics/{}", _dropped)
DIFF = Route(DiffRequest, b"POST", "/v0/topics/{}/diff", _page)
TABLE: Route[TableRequest, TablePage] = Route(
    TableRequest, b"POST", "/v0/topics/{}/diff", read_page, accept=ARROW_MEDIA
)
LATEST = Route(LatestQuery, b"GET", "/v0/topics/{}/latest", _latest)
GET_RECORD = Route(NOTHING, b"GET", "/v0/topics/{}/records/{}", _record)
NEWEST_RECORD = Route(NewestQuery, b"GET", "/v0/topics/{}/records/latest", _record)
DELETE = Route(DeleteRequest, b"POST", "/v0/topics/{}/delete", decoder_of(DeleteResult))
SEGMENTS = Route(NOTHING, b"GET", "/v0/topics/{}/segments", _manifest)
TOPICS = Route(ListQuery, b"GET", "/v0/topics", decoder_of(TopicPage))

_CURSOR_PATH = "/v0/topics/{}/cursors/{}"
GET_CURSOR = Route(NOTHING, b"GET", _CURSOR_PATH, decoder_of(CursorState))
COMMIT_CURSOR = Route(CommitRequest, b"POST", _CURSOR_PATH, decoder_of(CursorState))
# A repeated take-over raises the fence once more, and a repeated reset sets back what was committed in between.
PUT_CURSOR = Route(PutCursorRequest, b"PUT", _CURSOR_PATH, decoder_of(CursorState), repeatable=_never)
DELETE_CURSOR = Route(NOTHING, b"DELETE", _CURSOR_PATH, decoder_of(CursorDropped))
TOPIC_CURSORS = Route(NOTHING, b"GET", "/v0/topics/{}/cursors", decoder_of(CursorPage))
CURSORS = Route(ListQuery, b"GET", "/v0/cursors", decoder_of(CursorPage))

# The jobs of a claim whose answer was lost stay leased until their leases run out. A nack without lease ids might give
# back a job that the same node has claimed again meanwhile.
CLAIM = Route(ClaimRequest, b"POST", "/v0/topics/{}/claim", payload_decoder(ClaimResult, "claimed"), repeatable=_never)
ACK = Route(AckRequest, b"POST", "/v0/topics/{}/ack", decoder_of(AckResult))
NACK = Route(
    NackRequest,
    b"POST",
    "/v0/topics/{}/nack",
    decoder_of(NackResult),
    repeatable=lambda asked: bool(asked.lease_ids),
)
EXTEND = Route(ExtendRequest, b"POST", "/v0/topics/{}/extend", decoder_of(ExtendResult))

JOBS = Route(JobQuery, b"GET", "/v0/topics/{}/jobs", decoder_of(JobPage))
WORKERS = Route(NOTHING, b"GET", "/v0/topics/{}/workers", decoder_of(WorkerPage))
CANCEL = Route(SeqsRequest, b"POST", "/v0/topics/{}/cancel", decoder_of(CancelResult))
RETRY = Route(SeqsRequest, b"POST", "/v0/topics/{}/retry", decoder_of(RetryResult))
MOVE = Route(MoveRequest, b"POST", "/v0/topics/{}/move", decoder_of(MoveResult))
REDRIVE = Route(RedriveRequest, b"POST", "/v0/topics/{}/redrive", decoder_of(RedriveResult))
PAUSE = Route(NOTHING, b"POST", "/v0/topics/{}/pause", decoder_of(PauseResult))
RESUME = Route(NOTHING, b"POST", "/v0/topics/{}/resume", decoder_of(PauseResult))

PUT_ROUTER = Route(PutRouterRequest, b"PUT", "/v0/routers/{}", decoder_of(RouterState))
GET_ROUTER = Route(NOTHING, b"GET", "/v0/routers/{}", decoder_of(RouterState))
DELETE_ROUTER = Route(NOTHING, b"DELETE", "/v0/routers/{}", _router_gone)
ROUTERS = Route(ListQuery, b"GET", "/v0/routers", decoder_of(RouterPage))

PUT_SCHEDULE = Route(PutScheduleRequest, b"PUT", "/v0/schedules/{}", decoder_of(ScheduleState))
GET_SCHEDULE = Route(NOTHING, b"GET", "/v0/schedules/{}", decoder_of(ScheduleState))
DELETE_SCHEDULE = Route(NOTHING, b"DELETE", "/v0/schedules/{}", decoder_of(ScheduleDropped))
RUN_SCHEDULE = Route(NOTHING, b"POST", "/v0/schedules/{}/run", decoder_of(ScheduleRun), repeatable=_never)
PAUSE_SCHEDULE = Route(NOTHING, b"POST", "/v0/schedules/{}/pause", decoder_of(ScheduleState))
RESUME_SCHEDULE = Route(NOTHING, b"POST", "/v0/schedules/{}/resume", decoder_of(ScheduleState))
SCHEDULES = Route(ScheduleQuery, b"GET", "/v0/schedules", decoder_of(SchedulePage))

WATCH = Route(WatchRequest, b"POST", "/v0/watch", decoder_of(WatchResult))
WATCH_STREAM = Route(NOTHING, b"GET", "/v0/watch/{}", bytes)

TOKEN = Route(TokenRequest, b"POST", "/v0/tokens", decoder_of(StreamToken))

HEALTH = Route(NOTHING, b"GET", "/v0/health", _document)
READY = Route(NOTHING, b"GET", "/v0/ready", _document)
METRICS = Route(NOTHING, b"GET", "/v0/metrics", _document)


# --- writes: a record is encoded once, into its entry of the body, and the body is a join ----------------------------

_APPEND_PATH = "/v0/topics/{}?return_seqs=false"
_UNIQUE_PATH = "/v0/topics/{}"
_decode_appended = decoder_of(AppendResult)
_decode_pieces = decoder_of(list[msgspec.Raw])


class Condition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a write expects of its topic (`docs/spec/readers.md#sec-6`)."""

    if_head: FromSeq | None = None
    if_tag_seq: TagSeqs | None = None


def append_call(
    topic: str,
    pieces: Sequence[bytes],
    *,
    key: str,
    node: str | None = None,
    config: bytes | None = None,
    condition: Condition | None = None,
    has_unique: bool = False,
) -> ClientCall[AppendResult]:
    """A write of encoded records. `config` is JSON text; it counts only if this write creates the topic. Where a record
    has a unique key, its seq need not follow from the first one's, so all are asked for."""
    rest = b""
    if node is not None:
        rest += b',"node":' + _encode(_string(node))
    if config is not None:
        rest += b',"config":' + config
    if condition is not None:
        rest += b"," + _encode(condition)[1:-1]
    records = pieces[0] if len(pieces) == 1 else b",".join(pieces)
    body = b'{"records":[%b]%b,"idempotency_key":%b}' % (records, rest, _encode(_string(key)))
    target = _target(_UNIQUE_PATH if has_unique else _APPEND_PATH, topic)
    return ClientCall(b"POST", target, _decode_appended, body=body)


def record_piece(
    data: Any, *, tag: str | None = None, node: str | None = None, meta: Any = None, job: dict[str, Any] | None = None
) -> bytes:
    """One entry of `records`; `job` is what `job_fields` gives."""
    entry = {"data": json_text(data) if type(data) is Json else data}
    if job:
        entry.update((name, value) for name, value in job.items() if value is not None)
    if tag is not None:
        entry["tag"] = _string(tag)
    if node is not None:
        entry["node"] = _string(node)
    if meta is not None:
        entry["meta"] = json_text(meta)
    return _entry(entry, data)


def piece_of(value: Any) -> bytes:
    """Anything `append_many` takes: an `Event`, or the data itself."""
    if type(value) is Event:
        return record_piece(value.data, tag=value.tag, node=value.node, meta=value.meta, job=job_fields(value))
    return _entry({"data": json_text(value) if type(value) is Json else value}, value)


def _string(text: str) -> str:
    """The encoder would make base64 of bytes, and the record would carry something else than was given."""
    if not isinstance(text, str):
        raise InvalidRequest("a tag, node or idempotency key is not a string")
    return text


def _entry(entry: dict[str, Any], data: Any) -> bytes:
    refuse_bytes(data)
    try:
        piece = _encode(entry)
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"the value is not JSON: {error}") from None
    # NaN and the infinities come out as null; a null is rare enough to be looked at twice.
    if b"null" in piece:
        json_text(data)
    return piece


def whole(pieces: list[bytes]) -> list[bytes]:
    """Each piece is one record: a `Json` inside a value is put in as it is, and must not make more of it."""
    try:
        count = len(_decode_pieces(b"[%b]" % b",".join(pieces)))
    except msgspec.DecodeError:
        return pieces  # the server knows more of JSON, lone surrogates for one, and says what is wrong
    if count != len(pieces):
        raise InvalidRequest("the value is not JSON: a text inside it ends it early")
    return pieces
