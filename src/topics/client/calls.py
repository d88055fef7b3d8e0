"""Calls: each verb as a value, with its path, its body, how its answer is read and whether it may be repeated.

The blocking and the asyncio client both run these and differ in nothing else. Repeatable is what `http-api.md` section
23.4 calls safe; a write is, because it always carries a key."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import count
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from topics import limits
from topics.client.bodies import write_body
from topics.client.decoding import decode_claim, decode_page, decoder_of
from topics.client.exchange import Call
from topics.client.forks import tell_of_forks
from topics.errors import InvalidRequest
from topics.model.config import ConfigPatch, patch_from
from topics.model.doors import Match, Seqs, listed
from topics.model.paging import After, node_names
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
    RouterPage,
    RouterState,
    TopicPage,
    TopicState,
    WatchResult,
)
from topics.model.spans import refuse_overlap
from topics.wire.queue_requests import AckRequest, ClaimRequest, ExtendRequest, NackRequest
from topics.wire.requests import DeleteRequest, DiffRequest, PutRouterRequest, WatchRequest, checked, predicate

_encode = msgspec.json.Encoder().encode


class Keys:
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
) -> Call[AppendResult]:
    body = write_body(pieces, key=key, node=node, config=config)
    return Call(b"POST", _path("topics", topic, return_seqs="false"), _appended, body=body)


def diff(
    topic: str, after: After, *, limit: int, max_bytes: int, exclude_nodes: Iterable[str] = (), wait_ms: int = 0
) -> Call[ReadResult]:
    request = checked(
        DiffRequest,
        from_seq=checked_position(after).given,
        limit=limit,
        max_batch_bytes=max_bytes,
        node=node_names(exclude_nodes) or None,
        include_tags=True,
        wait_ms=wait_ms,
    )
    return Call(b"POST", _path("topics", topic, "/diff"), decode_page, body=_encode(request), wait_ms=request.wait_ms)


def delete(topic: str, *, before_seq: int | None, match: Match) -> Call[DeleteResult]:
    request = checked(DeleteRequest, before_seq=before_seq, match=predicate(match))
    request.selector()
    return Call(b"POST", _path("topics", topic, "/delete"), _deleted, body=_encode(request))


def state(topic: str, *, touch: bool) -> Call[TopicState]:
    return Call(b"GET", _path("topics", topic, touch=_flag(touch)), _state)


def configure(topic: str, config: bytes) -> Call[PutTopicResult]:
    return Call(b"PUT", _path("topics", topic), _put, body=config)


def drop(topic: str, *, if_empty: bool) -> Call[DeleteTopicResult]:
    return Call(b"DELETE", _path("topics", topic, if_empty=_flag(if_empty)), _dropped)


def list_topics(prefix: str, cursor: str | None) -> Call[TopicPage]:
    query = {"prefix": prefix, "page_size": limits.PAGE_SIZE.high, "cursor": cursor or ""}
    return Call(b"GET", f"/v0/topics?{urlencode(query)}", _topics)


# --- routers ---------------------------------------------------------------------------------------------------------

_router = decoder_of(RouterState)
_router_gone = decoder_of(DeleteRouterResult)
_routers = decoder_of(RouterPage)


def put_router(router: str, fields: dict[str, Any]) -> Call[RouterState]:
    fields["filter"] = predicate(fields.get("filter"))
    return Call(b"PUT", _path("routers", router), _router, body=_encode(checked(PutRouterRequest, **fields)))


def get_router(router: str) -> Call[RouterState]:
    return Call(b"GET", _path("routers", router), _router)


def delete_router(router: str) -> Call[DeleteRouterResult]:
    return Call(b"DELETE", _path("routers", router), _router_gone)


def list_routers(prefix: str, cursor: str | None, **ends: str | None) -> Call[RouterPage]:
    query = {"prefix": prefix, "page_size": limits.PAGE_SIZE.high, "cursor": cursor or ""}
    query |= {name: topic for name, topic in ends.items() if topic is not None}
    return Call(b"GET", f"/v0/routers?{urlencode(query)}", _routers)


# --- queues ----------------------------------------------------------------------------------------------------------

_acked = decoder_of(AckResult)
_nacked = decoder_of(NackResult)
_extended = decoder_of(ExtendResult)


def seqs_and_fences(jobs: Seqs) -> tuple[list[int], list[str]]:
    """A `Job` brings its lease id along, so that nobody settles a lease that has passed on; a bare seq does not."""
    given = listed(jobs)
    fences = [job.lease_id if isinstance(job, Job) else "" for job in given]
    return [job.seq if isinstance(job, Job) else job for job in given], fences if any(fences) else []


def claim(queue: str, *, node: str, max: int, lease_ms: int | None, jitter_ms: int = 0) -> Call[ClaimResult]:
    """Not repeatable: jobs of a lost answer stay leased until their leases run out."""
    body = _encode(checked(ClaimRequest, node=node, max=max, lease_ms=lease_ms))
    return Call(b"POST", _path("topics", queue, "/claim"), decode_claim, body=body, repeatable=False, wait_ms=jitter_ms)


def ack(queue: str, jobs: Seqs, *, node: str) -> Call[AckResult]:
    seqs, fences = seqs_and_fences(jobs)
    body = _encode(checked(AckRequest, node=node, seqs=seqs, lease_ids=fences))
    return Call(b"POST", _path("topics", queue, "/ack"), _acked, body=body)


def nack(queue: str, jobs: Seqs, *, node: str, delay_ms: int) -> Call[NackResult]:
    seqs, fences = seqs_and_fences(jobs)
    body = _encode(checked(NackRequest, node=node, seqs=seqs, lease_ids=fences, delay_ms=delay_ms))
    return Call(b"POST", _path("topics", queue, "/nack"), _nacked, body=body, repeatable=bool(fences))


def extend(queue: str, jobs: Seqs, *, node: str, lease_ms: int) -> Call[ExtendResult]:
    seqs, fences = seqs_and_fences(jobs)
    body = _encode(checked(ExtendRequest, node=node, seqs=seqs, lease_ids=fences, lease_ms=lease_ms))
    return Call(b"POST", _path("topics", queue, "/extend"), _extended, body=body)


# --- streams, probes -------------------------------------------------------------------------------------------------

_watched = decoder_of(WatchResult)


def watch(topic: str, after: After, *, exclude_nodes: Iterable[str], heartbeat_ms: int) -> Call[WatchResult]:
    request = checked(
        WatchRequest,
        topics={topic: {"from_seq": checked_position(after).given}},
        node=list(exclude_nodes) or None,
        limit=limits.WATCH_LIMIT.high,
        max_batch_bytes=limits.DIFF_BATCH_BYTES.default,
        heartbeat_ms=heartbeat_ms,
        include_tags=True,
    )
    return Call(b"POST", "/v0/watch", _watched, body=_encode(request))


def watch_stream(wid: str) -> Call[bytes]:
    return Call(b"GET", f"/v0/watch/{quote(wid)}", bytes)


def work_stream(queue: str, *, node: str, max: int, lease_ms: int | None) -> Call[bytes]:
    query = {"node": node, "max": max} | ({} if lease_ms is None else {"lease_ms": lease_ms})
    return Call(b"GET", _path("topics", queue, "/work", **query), bytes)


def _document(body: bytes) -> dict[str, Any]:
    return msgspec.json.decode(body, type=dict[str, Any])


def _manifest(body: bytes) -> dict[str, Any]:
    told = _document(body)
    refuse_overlap(told["topic"], ((segment["first_seq"], segment["last_seq"]) for segment in told["segments"]))
    return told


def segments(topic: str) -> Call[dict[str, Any]]:
    return Call(b"GET", _path("topics", topic, "/segments"), _manifest)


HEALTH: Call[dict[str, Any]] = Call(b"GET", "/v0/health", _document)
READY: Call[dict[str, Any]] = Call(b"GET", "/v0/ready", _document)
METRICS: Call[dict[str, Any]] = Call(b"GET", "/v0/metrics", _document)
