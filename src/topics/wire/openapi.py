"""`/openapi.json`: the endpoint table as an OpenAPI 3.1 document.

Paths, parameters, rights and statuses come from `endpoints`, bodies from the structs that requests are decoded into and
results are made of. Limits that are checked later than the types stand in `_LIMITS`. Built once by api.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from topics import limits
from topics.model import results, router
from topics.model.config import SHOWN_IF_SET, ConfigPatch
from topics.model.paging import RecordResult
from topics.model.schedules import schedule_answers
from topics.wire.access import stream_tokens
from topics.wire.access.keys import ADMIN, DELETE, READ, WRITE
from topics.wire.endpoints import Endpoint
from topics.wire.incoming import cursor_requests, queue_requests, requests, schedule_requests

Json = dict[str, Any]

REF = "#/components/schemas/"
_REQUESTS: tuple[type, ...] = (
    ConfigPatch, requests.WriteRequest, requests.DiffRequest, requests.DeleteRequest, requests.PutRouterRequest,
    requests.TokenRequest,
    requests.WatchRequest, queue_requests.ClaimRequest, queue_requests.AckRequest, queue_requests.NackRequest,
    queue_requests.ExtendRequest, queue_requests.SeqsRequest, queue_requests.MoveRequest,
    queue_requests.RedriveRequest, cursor_requests.CommitRequest, cursor_requests.CommitsRequest,
    cursor_requests.PutCursorRequest, schedule_requests.PutScheduleRequest,
)  # fmt: skip
_RESULTS: tuple[type, ...] = (
    results.AppendResult, results.ReadResult, RecordResult, results.LatestResult, results.DeleteResult,
    results.TopicState, results.TopicPage,
    results.PutTopicResult, results.DeleteTopicResult, router.RouterState, router.RouterPage,
    router.DeleteRouterResult, results.ClaimResult, results.AckResult, results.NackResult, results.ExtendResult,
    results.WatchResult, results.JobPage, results.WorkerPage, results.CancelResult, results.RetryResult,
    results.MoveResult, results.RedriveResult, results.PauseResult,
    results.CursorAnswer, results.CursorPage, results.CursorDropped, results.CommitResults,
    results.AccessResult, stream_tokens.StreamToken,
    schedule_answers.ScheduleState, schedule_answers.SchedulePage, schedule_answers.ScheduleDropped,
    schedule_answers.ScheduleRun,
)  # fmt: skip

_TOPIC_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$"
_ROUTER_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}$"
_LEASE_PATTERN = "^(lease_[0-9a-fA-F]{1,16})?$"


def _match_form(op: str, value: Json) -> Json:
    return {"type": "array", "prefixItems": [{"const": "tag"}, {"const": op}, value], "minItems": 3, "maxItems": 3}


_PREDICATE: Json = {
    "description": 'a tag match: "x", "x*", ["tag","Eq","x"] or ["tag","Glob","x*"]; null is none',
    "anyOf": [
        {"type": "string"},
        _match_form("Eq", {"type": "string"}),
        _match_form("Glob", {"type": "string", "pattern": "\\*$"}),
        {"type": "null"},
    ],
}
_SEQS: Json = {"maxItems": limits.SEQS_PER_CALL_MAX}
_LEASE_IDS: Json = {
    "description": "one per seq, or none at all; an empty string fences nothing",
    "items": {"type": "string", "pattern": _LEASE_PATTERN},
}

# What a struct's types do not say, by component and property.
_LIMITS: dict[tuple[str, str], Json] = {
    ("WriteRequest", "records"): {"minItems": 1, "maxItems": limits.RECORDS_PER_WRITE_MAX},
    ("WatchRequest", "topics"): {"minProperties": 1, "maxProperties": limits.WATCH_TOPICS_MAX},
    ("ClaimRequest", "node"): {"minLength": 1, "maxLength": limits.NODE_BYTES_MAX},
    **{(name, "node"): {"minLength": 1} for name in ("AckRequest", "NackRequest", "ExtendRequest")},
    **{(name, "seqs"): _SEQS for name in ("AckRequest", "NackRequest", "ExtendRequest")},
    **{(name, "lease_ids"): _LEASE_IDS for name in ("AckRequest", "NackRequest", "ExtendRequest")},
    ("RecordIn", "data"): {"description": f"any JSON; with meta at most {limits.RECORD_BYTES_MAX} bytes of text"},
    ("RecordIn", "meta"): {"description": "a small object; null is none, other JSON is kept as it is"},
    ("ConfigPatch", "dead_letter"): {"description": "a topic's name, checked where a topic gets this config"},
    ("DeleteRequest", "match"): _PREDICATE,
    ("RedriveRequest", "match"): _PREDICATE,
    ("RedriveRequest", "to"): {"description": "a queue; without it each letter goes where it came from"},
    ("MoveRequest", "to"): {"description": "a queue that exists"},
    **{(name, "seqs"): _SEQS for name in ("SeqsRequest", "MoveRequest")},
    ("PutRouterRequest", "source"): {"pattern": _TOPIC_PATTERN},
    ("PutRouterRequest", "dest"): {"pattern": _TOPIC_PATTERN},
    ("PutRouterRequest", "filter"): _PREDICATE,
    ("PutScheduleRequest", "topic"): {"pattern": _TOPIC_PATTERN},
    ("PutScheduleRequest", "cron"): {"description": "five fields of a crontab, or @daily and the like"},
    ("PutScheduleRequest", "timezone"): {"description": "an IANA name, such as Europe/Berlin; with cron only"},
    ("PutScheduleRequest", "every_ms"): {"description": f"from {limits.SCHEDULE_EVERY_MS_MIN} ms to 100 years"},
}

_PATH_NAMES: dict[str, Json] = {
    "topic": {"type": "string", "pattern": _TOPIC_PATTERN},
    "router": {"type": "string", "pattern": _ROUTER_PATTERN},
    "cursor": {"type": "string", "pattern": _TOPIC_PATTERN},
    "seq": {"type": "string", "pattern": "^[1-9][0-9]{0,18}(-e[0-9a-f]{1,16})?$"},
    "schedule": {"type": "string", "pattern": _ROUTER_PATTERN},
    "wid": {"type": "string", "pattern": "^wid_[A-Za-z0-9_-]{22}$"},
    "file": {"type": "string", "pattern": "^[A-Za-z0-9._-]+$"},
}

_TEXTS: Json = {"type": "array", "items": {"type": "string"}, "minItems": 1}
_OPEN_OBJECT: Json = {"type": "object"}
_MORE_SCHEMAS: dict[str, Json] = {
    "Performance": {
        "type": "object",
        "required": ["server_total_ms"],
        "properties": {
            "server_total_ms": {"type": "number", "minimum": 0},
            "wal_append_ms": {"type": "number", "minimum": 0},
            "fsync_ms": {"type": "number", "minimum": 0},
            "records_scanned": {"type": "integer", "minimum": 0},
            "cold_segments_read": {"type": "integer", "minimum": 1},
            "throttle_wait_ms": {"type": "number", "minimum": 0},
        },
    },
    "Error": {
        "type": "object",
        "required": ["error"],
        "additionalProperties": False,
        "properties": {
            "error": {
                "type": "object",
                "required": ["code", "message"],
                "additionalProperties": False,
                "properties": {
                    "code": {"type": "string", "pattern": "^[a-z_]+$"},
                    "message": {"type": "string", "minLength": 1},
                    "detail": _OPEN_OBJECT,
                },
            }
        },
    },
    "Health": {
        "type": "object",
        "required": ["status", "version", "uptime_ms"],
        "properties": {
            "status": {"const": "ok"},
            "version": {"type": "string"},
            "uptime_ms": {"type": "integer", "minimum": 0},
            "problems": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        },
    },
    "Ready": {
        "type": "object",
        "required": ["status", "wal_replay_complete", "topics"],
        "properties": {
            "status": {"const": "ready"},
            "wal_replay_complete": {"const": True},
            "topics": {"type": "integer", "minimum": 0},
        },
    },
    "Segments": _OPEN_OBJECT,
    "Metrics": _OPEN_OBJECT,
    "OpenApi": _OPEN_OBJECT,
}

_STATUS_TEXT = {
    101: "Switching protocols", 200: "Done", 201: "Created", 303: "Look there", 304: "Unchanged", 400: "Bad request",
    401: "No or unknown key",
    403: "The key does not permit it", 404: "Not there", 406: "Unsuitable Accept", 409: "Conflict",
    413: "Body too large", 415: "Not application/json", 422: "Topic full", 429: "Throttled", 500: "Internal error",
    503: "Not ready, shutting down or disk full",
}  # fmt: skip
_SCOPE_NAMES = ((READ, "read"), (WRITE, "write"), (DELETE, "delete"), (ADMIN, "admin"))
_RETRY_AFTER: Json = {"Retry-After": {"schema": {"type": "integer"}, "description": "seconds"}}


def openapi_document(endpoints: Iterable[Endpoint], *, version: str) -> Json:
    paths: dict[str, Json] = {}
    for row in endpoints:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "topics",
            "version": version,
            "description": "Append-only topics, live delivery, routers and lease queues over HTTP.",
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "token": {"type": "apiKey", "in": "query", "name": "token"},
            },
        },
    }


# --- operations ------------------------------------------------------------------------------------------------------


AT_ROOT_TOO = ("/healthz", "/readyz", "/metrics")
"""Second addresses of endpoints, for those who look there by custom."""


def _operation(row: Endpoint) -> Json:
    operation: Json = {
        "operationId": row.handler + ("_at_root" if row.path in AT_ROOT_TOO else ""),
        "summary": row.summary,
        "parameters": [*_path_params(row), *_query_params(row), *_header_params(row)],
        "responses": {str(status): _response(row, status) for status in _statuses(row)},
        "security": _security(row),
    }
    if row.request is not None:
        schema = {"$ref": REF + row.request}
        operation["requestBody"] = {
            "required": row.body != "empty_ok",
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _path_params(row: Endpoint) -> list[Json]:
    names = [part[1:-1] for part in row.path.split("/") if part.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": _PATH_NAMES[name]} for name in names]


def _query_params(row: Endpoint) -> list[Json]:
    return [
        {
            "name": param.name,
            "in": "query",
            "required": param.required,
            "description": param.help,
            "schema": {"type": param.type} | ({"minimum": 0} if param.type == "integer" else {}),
        }
        for param in row.query
    ]


def _header_params(row: Endpoint) -> list[Json]:
    return [{"name": name, "in": "header", "required": False, "schema": {"type": "string"}} for name in row.headers]


def _statuses(row: Endpoint) -> list[int]:
    statuses = {*row.ok, *row.errors, 429, 500, 503}
    if "{" in row.path:
        statuses.add(400)
    if row.body != "none":
        statuses |= {400, 413, 415}
    statuses.add(401)
    if row.scopes:
        statuses.add(403)
    return sorted(statuses)


def _response(row: Endpoint, status: int) -> Json:
    response: Json = {"description": _STATUS_TEXT[status]}
    if status >= 400:
        response["content"] = {"application/json": {"schema": {"$ref": REF + "Error"}}}
        if status in (429, 503):
            response["headers"] = _RETRY_AFTER
    elif status >= 200 and status != 304:
        response["content"] = _success_content(row)
    return response


def _success_content(row: Endpoint) -> Json:
    if row.response is None:
        return {row.media: {"schema": {"type": "string"}}}
    content: Json = {row.media: {"schema": {"$ref": REF + row.response}}}
    if row.response == "Metrics":
        content["text/plain"] = {"schema": {"type": "string"}}
    return content


def _security(row: Endpoint) -> list[Json]:
    """The empty requirement stands for a server without keys."""
    if row.guard in ("probe", "open"):
        return []
    scopes = [name for bit, name in _SCOPE_NAMES if row.scopes & bit]
    return [{}, {"key": scopes}] + ([{"token": scopes}] if row.takes_stream_token else [])


# --- schemas ---------------------------------------------------------------------------------------------------------


def _schemas() -> dict[str, Json]:
    _, requested = msgspec.json.schema_components(_REQUESTS, ref_template=REF + "{name}")
    _, answered = msgspec.json.schema_components(_RESULTS, ref_template=REF + "{name}")
    for name, schema in answered.items():
        if name == "TopicConfig":
            schema["required"] = [name for name in schema["properties"] if name not in SHOWN_IF_SET]
        else:
            _omit_instead_of_null(schema)
    for schema in requested.values():
        schema.pop("additionalProperties", None)  # unknown fields are taken, and named in `warnings`
    schemas: dict[str, Json] = {**requested, **answered}
    for schema in schemas.values():
        schema.pop("description", None)  # a docstring: written for whoever reads the struct
    for result in _RESULTS:
        schema = schemas[result.__name__]
        schema["properties"]["performance"] = {"$ref": REF + "Performance"}
        schema["properties"] |= dict.fromkeys(("hidden", "warnings"), _TEXTS)
        schema["required"] = [*schema.get("required", ()), "performance"]
    schemas["AppendResult"]["properties"]["seqs"] = {"type": "array", "items": {"type": "integer", "minimum": 1}}
    for (name, field), more in _LIMITS.items():
        properties = schemas[name]["properties"]
        kept = {} if "anyOf" in more else properties[field]
        properties[field] = {**kept, **more}
    return {**schemas, **_MORE_SCHEMAS}


_SHOWN_AS_NULL = frozenset({"last_write_ts"})  # of a topic in a list: null before the first write


def _omit_instead_of_null(schema: Json) -> None:
    """An optional part of an answer is left out when it is absent, never null."""
    for name, part in schema["properties"].items():
        if name not in schema["required"] and name not in _SHOWN_AS_NULL and "anyOf" in part:
            schema["properties"][name] = next(choice for choice in part["anyOf"] if choice != {"type": "null"})
