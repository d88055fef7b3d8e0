"""Decoding of answers into result structs.

Payload texts may hold escapes of lone surrogates, which msgspec refuses to read. Such an answer is read once more with
these escapes spelled in another way, and they are put back into the payloads: byte for byte what was stored.

Calls: each verb as a value, with its path, its body, how its answer is read and whether it may be repeated.

The blocking and the asyncio client both run these and differ in nothing else. Repeatable is what
`docs/spec/http-api.md#sec-23-4` calls safe; a write is, because it always carries a key.
"""

from __future__ import annotations

import re
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import count, repeat
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec.structs import force_setattr

from topics import limits
from topics.client.transport.forks import tell_of_forks
from topics.client.transport.http_messages import ClientCall
from topics.client.transport.request_bodies import write_body
from topics.errors import InvalidRequest
from topics.model.config import ConfigPatch, patch_from
from topics.model.doors import Match, Seqs, listed
from topics.model.paging import After, end_of, node_names, refuse_overlap
from topics.model.position import checked_position
from topics.model.results import (
    AckResult,
    AppendResult,
    ClaimResult,
    DeleteResult,
    DeleteRouterResult,
    DeleteTopicResult,
    ExtendResult,
    Job,
    NackResult,
    PutTopicResult,
    ReadResult,
    Record,
    RouterPage,
    RouterState,
    TopicPage,
    TopicState,
    WatchResult,
)
from topics.wire.incoming.requests import (
    AckRequest,
    ClaimRequest,
    DeleteRequest,
    DiffRequest,
    ExtendRequest,
    NackRequest,
    PutRouterRequest,
    WatchRequest,
    checked,
    predicate,
)

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


_encode = msgspec.json.Encoder().encode


class IdempotencyKeys:
    """Idempotency keys of one client: unlike every other client's, and each used once."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(8)
        self._numbers = count(1)
        tell_of_forks(self)

    def forked(self) -> None:
        self._prefix = secrets.token_hex(8)

    def next(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"


@lru_cache(4096)
def _path(kind: str, name: str, verb: str = "", **query: Any) -> str:
    if not name:
        raise InvalidRequest("a name must not be empty")
    asked = "?" + urlencode(query) if query else ""
    try:
        return f"/v0/{kind}/{quote(name, safe=':->')}{verb}{asked}"
    except (UnicodeEncodeError, TypeError):
        raise InvalidRequest(f"{name!r} is no name") from None


def _flag(value: bool) -> str:
    return "true" if value else "false"


# --- topics ----------------------------------------------------------------------------------------------------------


def config_text(config: dict[str, Any]) -> bytes:
    """Checked as the server will; only what was given is sent, what is left out takes its default there."""
    patch = patch_from(config)
    return _encode({name: getattr(patch, name) for name in ConfigPatch.__struct_fields__ if name in config})


_appended = decoder_of(AppendResult)
_state = decoder_of(TopicState)
_put = decoder_of(PutTopicResult)
_dropped = decoder_of(DeleteTopicResult)
_topics = decoder_of(TopicPage)
_deleted = decoder_of(DeleteResult)


def append(
    topic: str, pieces: Sequence[bytes], *, key: str, node: str | None = None, config: bytes | None = None
) -> ClientCall[AppendResult]:
    body = write_body(pieces, key=key, node=node, config=config)
    return ClientCall(b"POST", _path("topics", topic, return_seqs="false"), _appended, body=body)


def diff(
    topic: str, after: After, *, limit: int, max_bytes: int, exclude_nodes: Iterable[str] = (), wait_ms: int = 0
) -> ClientCall[ReadResult]:
    request = checked(
        DiffRequest,
        from_seq=checked_position(after).given,
        limit=limit,
        max_batch_bytes=max_bytes,
        node=node_names(exclude_nodes) or None,
        include_tags=True,
        wait_ms=wait_ms,
    )
    return ClientCall(
        b"POST", _path("topics", topic, "/diff"), decode_page, body=_encode(request), wait_ms=request.wait_ms
    )


def delete(topic: str, *, before_seq: int | None, match: Match) -> ClientCall[DeleteResult]:
    request = checked(DeleteRequest, before_seq=before_seq, match=predicate(match))
    request.selector()
    return ClientCall(b"POST", _path("topics", topic, "/delete"), _deleted, body=_encode(request))


def state(topic: str, *, touch: bool) -> ClientCall[TopicState]:
    return ClientCall(b"GET", _path("topics", topic, touch=_flag(touch)), _state)


def configure(topic: str, config: bytes) -> ClientCall[PutTopicResult]:
    return ClientCall(b"PUT", _path("topics", topic), _put, body=config)


def drop(topic: str, *, if_empty: bool) -> ClientCall[DeleteTopicResult]:
    return ClientCall(b"DELETE", _path("topics", topic, if_empty=_flag(if_empty)), _dropped)


def list_topics(prefix: str, cursor: str | None) -> ClientCall[TopicPage]:
    query = {"prefix": prefix, "page_size": limits.PAGE_SIZE.high, "cursor": cursor or ""}
    return ClientCall(b"GET", f"/v0/topics?{urlencode(query)}", _topics)


# --- routers ---------------------------------------------------------------------------------------------------------

_router = decoder_of(RouterState)
_router_gone = decoder_of(DeleteRouterResult)
_routers = decoder_of(RouterPage)


def put_router(router: str, fields: dict[str, Any]) -> ClientCall[RouterState]:
    fields["filter"] = predicate(fields.get("filter"))
    return ClientCall(b"PUT", _path("routers", router), _router, body=_encode(checked(PutRouterRequest, **fields)))


def get_router(router: str) -> ClientCall[RouterState]:
    return ClientCall(b"GET", _path("routers", router), _router)


def delete_router(router: str) -> ClientCall[DeleteRouterResult]:
    return ClientCall(b"DELETE", _path("routers", router), _router_gone)


def list_routers(prefix: str, cursor: str | None, **ends: str | None) -> ClientCall[RouterPage]:
    query = {"prefix": prefix, "page_size": limits.PAGE_SIZE.high, "cursor": cursor or ""}
    query |= {name: topic for name, topic in ends.items() if topic is not None}
    return ClientCall(b"GET", f"/v0/routers?{urlencode(query)}", _routers)


# --- queues ----------------------------------------------------------------------------------------------------------

_acked = decoder_of(AckResult)
_nacked = decoder_of(NackResult)
_extended = decoder_of(ExtendResult)


def seqs_and_fences(jobs: Seqs) -> tuple[list[int], list[str]]:
    """A `Job` brings its lease id along, so that nobody settles a lease that has passed on; a bare seq does not."""
    given = listed(jobs)
    fences = [job.lease_id if isinstance(job, Job) else "" for job in given]
    return [job.seq if isinstance(job, Job) else job for job in given], fences if any(fences) else []


def claim(queue: str, *, node: str, max: int, lease_ms: int | None, jitter_ms: int = 0) -> ClientCall[ClaimResult]:
    """Not repeatable: jobs of a lost answer stay leased until their leases run out."""
    body = _encode(checked(ClaimRequest, node=node, max=max, lease_ms=lease_ms))
    return ClientCall(
        b"POST", _path("topics", queue, "/claim"), decode_claim, body=body, repeatable=False, wait_ms=jitter_ms
    )


def ack(queue: str, jobs: Seqs, *, node: str) -> ClientCall[AckResult]:
    seqs, fences = seqs_and_fences(jobs)
    body = _encode(checked(AckRequest, node=node, seqs=seqs, lease_ids=fences))
    return ClientCall(b"POST", _path("topics", queue, "/ack"), _acked, body=body)


def nack(queue: str, jobs: Seqs, *, node: str, delay_ms: int) -> ClientCall[NackResult]:
    seqs, fences = seqs_and_fences(jobs)
    body = _encode(checked(NackRequest, node=node, seqs=seqs, lease_ids=fences, delay_ms=delay_ms))
    return ClientCall(b"POST", _path("topics", queue, "/nack"), _nacked, body=body, repeatable=bool(fences))


def extend(queue: str, jobs: Seqs, *, node: str, lease_ms: int) -> ClientCall[ExtendResult]:
    seqs, fences = seqs_and_fences(jobs)
    body = _encode(checked(ExtendRequest, node=node, seqs=seqs, lease_ids=fences, lease_ms=lease_ms))
    return ClientCall(b"POST", _path("topics", queue, "/extend"), _extended, body=body)


# --- streams, probes -------------------------------------------------------------------------------------------------

_watched = decoder_of(WatchResult)


def watch(topic: str, after: After, *, exclude_nodes: Iterable[str], heartbeat_ms: int) -> ClientCall[WatchResult]:
    request = checked(
        WatchRequest,
        topics={topic: {"from_seq": checked_position(after).given}},
        node=list(exclude_nodes) or None,
        limit=limits.WATCH_LIMIT.high,
        max_batch_bytes=limits.DIFF_BATCH_BYTES.default,
        heartbeat_ms=heartbeat_ms,
        include_tags=True,
    )
    return ClientCall(b"POST", "/v0/watch", _watched, body=_encode(request))


def watch_stream(wid: str) -> ClientCall[bytes]:
    return ClientCall(b"GET", f"/v0/watch/{quote(wid)}", bytes)


def work_stream(queue: str, *, node: str, max: int, lease_ms: int | None) -> ClientCall[bytes]:
    query = {"node": node, "max": max} | ({} if lease_ms is None else {"lease_ms": lease_ms})
    return ClientCall(b"GET", _path("topics", queue, "/work", **query), bytes)


def _document(body: bytes) -> dict[str, Any]:
    return msgspec.json.decode(body, type=dict[str, Any])


def _manifest(body: bytes) -> dict[str, Any]:
    told = _document(body)
    refuse_overlap(told["topic"], ((segment["first_seq"], segment["last_seq"]) for segment in told["segments"]))
    return told


def segments(topic: str) -> ClientCall[dict[str, Any]]:
    return ClientCall(b"GET", _path("topics", topic, "/segments"), _manifest)


HEALTH: ClientCall[dict[str, Any]] = ClientCall(b"GET", "/v0/health", _document)
READY: ClientCall[dict[str, Any]] = ClientCall(b"GET", "/v0/ready", _document)
METRICS: ClientCall[dict[str, Any]] = ClientCall(b"GET", "/v0/metrics", _document)
