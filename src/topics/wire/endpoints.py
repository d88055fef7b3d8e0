"""THE endpoint table: every route of the contract, once. It routes requests, decides rights and writes `/openapi.json`.

A row names its handler; a server passes `paths.Routes` the rows it implements. Bodies are named by their structs, which
`openapi` knows. What is absent here does not exist.
"""

from typing import Literal

import msgspec

from topics.wire.access.keys import ADMIN, DELETE, READ, WRITE

Method = Literal["GET", "PUT", "POST", "DELETE"]
BodyKind = Literal["none", "required", "empty_ok", "never_empty"]
"""`empty_ok`: nothing is `{}`. `never_empty`: nothing is 400 whatever the content type. Else see `bodies`."""
Guard = Literal["key", "probe", "session", "open"]
"""`probe`: open unless TOPICS_PROBE_AUTH. `session`: the watch session's own key, checked by the endpoint. `open`: the
console's files, which tell nothing about the server: its sign-in must be seen by who has not signed in."""
Area = Literal["topics", "topic", "routers", "router", "schedules", "schedule", "watch", "probe", "stream", "other"]
"""The part of the address space that a path lies in; rights of unmatched requests depend on it."""


class Param(msgspec.Struct, frozen=True):
    """A query parameter."""

    name: str
    type: Literal["boolean", "integer", "string"]
    help: str
    required: bool = False


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    handler: str
    method: Method
    path: str
    summary: str
    scopes: int = 0
    guard: Guard = "key"
    body: BodyKind = "none"
    request: str | None = None
    response: str | None = None
    media: str = "application/json"
    query: tuple[Param, ...] = ()
    headers: tuple[str, ...] = ()
    ok: tuple[int, ...] = (200,)
    errors: tuple[int, ...] = ()
    takes_query_token: bool = False
    takes_stream_token: bool = False
    """A stream that a web page opens: `?token=` may be a stream token."""
    acts: bool = False
    """A GET that changes something, or through which something can be changed: web pages elsewhere may not use it."""


_PREFIX = Param("prefix", "string", "byte prefix of the name")
_PAGE_SIZE = Param("page_size", "integer", "entries per page, clamped to 1..1000; default 100")
_CURSOR = Param("cursor", "string", "next_cursor of the previous page")
_TOKEN = Param("token", "string", "a stream token or the key, where no Authorization header can be sent")

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint(
        handler="put_topic", method="PUT", path="/v0/topics/{topic}", summary="Create or reconfigure a topic",
        scopes=ADMIN, body="empty_ok", request="ConfigPatch", response="PutTopicResult", ok=(200, 201),
        errors=(400, 409, 429),
    ),
    Endpoint(
        handler="get_topic", method="GET", path="/v0/topics/{topic}", summary="Topic state",
        scopes=READ, response="TopicState", errors=(404,),
        query=(Param("touch", "boolean", "count as a read; default true"),),
    ),
    Endpoint(
        handler="list_topics", method="GET", path="/v0/topics", summary="List topics",
        scopes=READ, response="TopicPage", errors=(400,),
        query=(_PREFIX, _PAGE_SIZE, _CURSOR, Param("touch", "boolean", "bump the priority clock; default false")),
    ),
    Endpoint(
        handler="delete_topic", method="DELETE", path="/v0/topics/{topic}", summary="Drop a topic",
        scopes=DELETE, response="DeleteTopicResult", errors=(409,),
        query=(Param("if_empty", "boolean", "refuse if records are live; default false"),),
    ),
    Endpoint(
        handler="write", method="POST", path="/v0/topics/{topic}", summary="Append records",
        scopes=WRITE, body="required", request="WriteRequest", response="AppendResult", ok=(200, 201),
        errors=(400, 404, 409, 422, 429), headers=("Idempotency-Key",),
        query=(Param("return_seqs", "boolean", "list every seq; default true"),),
    ),
    Endpoint(
        handler="diff", method="POST", path="/v0/topics/{topic}/diff", summary="Read after a cursor",
        scopes=READ, body="empty_ok", request="DiffRequest", response="ReadResult", errors=(400, 404),
    ),
    Endpoint(
        handler="get_records", method="GET", path="/v0/topics/{topic}/records", summary="Read, cacheable",
        scopes=READ, response="ReadResult", ok=(200, 304), errors=(400, 404), headers=("If-None-Match",),
        query=(
            Param("from", "string", "a seq, a position, @ and milliseconds, or cursor:name; default 0"),
            Param("limit", "integer", "records, clamped to 1..1000; default 256"),
            Param("tag", "string", "only records with this tag; a final * matches a prefix"),
            Param("node", "string", "leave out records of this node"),
            Param("include_tags", "boolean", "show tags; default false"),
            Param("wait_ms", "integer", "wait so long for a record, clamped; default 0"),
        ),
    ),
    Endpoint(
        handler="newest_record", method="GET", path="/v0/topics/{topic}/records/latest", summary="The newest record",
        scopes=READ, response="RecordResult", errors=(400, 404),
        query=(Param("tag", "string", "of this tag; a final * matches a prefix"),),
    ),
    Endpoint(
        handler="get_record", method="GET", path="/v0/topics/{topic}/records/{seq}", summary="One record",
        scopes=READ, response="RecordResult", errors=(400, 404),
    ),
    Endpoint(
        handler="delete_records", method="POST", path="/v0/topics/{topic}/delete", summary="Delete records",
        scopes=DELETE, body="required", request="DeleteRequest", response="DeleteResult", errors=(400, 404),
    ),
    Endpoint(
        handler="latest", method="GET", path="/v0/topics/{topic}/latest", summary="The newest record of each tag",
        scopes=READ, response="LatestResult", errors=(400, 404),
        query=(
            Param("tag", "string", "prefix of the tags"), Param("after", "string", "next of the previous page"),
            Param("limit", "integer", "tags per page, clamped to 1..1000; default 256"),
        ),
    ),
    Endpoint(
        handler="commit_cursor", method="POST", path="/v0/topics/{topic}/cursors/{cursor}",
        summary="Commit a named cursor", scopes=READ, body="required", request="CommitRequest",
        response="CursorAnswer", ok=(200, 201), errors=(400, 404, 409, 429),
    ),
    Endpoint(
        handler="put_cursor", method="PUT", path="/v0/topics/{topic}/cursors/{cursor}",
        summary="Create, reset, take over or hold a named cursor", scopes=READ | WRITE, body="empty_ok",
        request="PutCursorRequest", response="CursorAnswer", ok=(200, 201), errors=(400, 404, 409, 429),
    ),
    Endpoint(
        handler="get_cursor", method="GET", path="/v0/topics/{topic}/cursors/{cursor}", summary="A named cursor",
        scopes=READ, response="CursorAnswer", errors=(404,),
    ),
    Endpoint(
        handler="delete_cursor", method="DELETE", path="/v0/topics/{topic}/cursors/{cursor}",
        summary="Forget a named cursor", scopes=DELETE, response="CursorDropped", errors=(404,),
    ),
    Endpoint(
        handler="topic_cursors", method="GET", path="/v0/topics/{topic}/cursors",
        summary="Readers of a topic: cursors, queue, routers", scopes=READ, response="CursorPage", errors=(404,),
    ),
    Endpoint(
        handler="list_cursors", method="GET", path="/v0/cursors", summary="Readers of all topics",
        scopes=READ, response="CursorPage", errors=(400,), query=(_PREFIX, _PAGE_SIZE, _CURSOR),
    ),
    Endpoint(
        handler="commit_cursors", method="POST", path="/v0/cursors", summary="Commit many named cursors",
        scopes=READ, body="required", request="CommitsRequest", response="CommitResults", errors=(400,),
    ),
    Endpoint(
        handler="claim", method="POST", path="/v0/topics/{topic}/claim", summary="Lease jobs",
        scopes=READ | WRITE, body="never_empty", request="ClaimRequest", response="ClaimResult", errors=(400, 404, 409),
    ),
    Endpoint(
        handler="ack", method="POST", path="/v0/topics/{topic}/ack", summary="Complete jobs",
        scopes=WRITE, body="required", request="AckRequest", response="AckResult", errors=(400, 404, 409),
    ),
    Endpoint(
        handler="nack", method="POST", path="/v0/topics/{topic}/nack", summary="Release jobs",
        scopes=WRITE, body="required", request="NackRequest", response="NackResult", errors=(400, 404, 409),
    ),
    Endpoint(
        handler="extend", method="POST", path="/v0/topics/{topic}/extend", summary="Prolong leases",
        scopes=WRITE, body="required", request="ExtendRequest", response="ExtendResult", errors=(400, 404, 409),
    ),
    Endpoint(
        handler="work", method="GET", path="/v0/topics/{topic}/work", summary="Jobs as server-sent events",
        scopes=READ | WRITE, media="text/event-stream", errors=(400, 404, 406, 409, 429), takes_query_token=True,
        takes_stream_token=True, acts=True,
        query=(
            Param("node", "string", "the worker's name, 1 to 128 bytes", required=True),
            Param("max", "integer", "leases to hold at a time, clamped to 1..1000; default 1"),
            Param("lease_ms", "integer", "length of a lease, clamped; default is the topic's"), _TOKEN,
        ),
    ),
    Endpoint(
        handler="list_jobs", method="GET", path="/v0/topics/{topic}/jobs", summary="List jobs by state",
        scopes=READ, response="JobPage", errors=(400, 404, 409),
        query=(
            Param("state", "string", "ready, delayed or in_flight; default all"),
            Param("tag", "string", "jobs with exactly this tag"), _PAGE_SIZE, _CURSOR,
        ),
    ),
    Endpoint(
        handler="list_workers", method="GET", path="/v0/topics/{topic}/workers", summary="List workers of a queue",
        scopes=READ, response="WorkerPage", errors=(404, 409),
    ),
    Endpoint(
        handler="cancel_jobs", method="POST", path="/v0/topics/{topic}/cancel", summary="Delete jobs",
        scopes=DELETE, body="required", request="SeqsRequest", response="CancelResult", errors=(400, 404, 409),
    ),
    Endpoint(
        handler="retry_jobs", method="POST", path="/v0/topics/{topic}/retry", summary="Make delayed jobs ready",
        scopes=WRITE, body="required", request="SeqsRequest", response="RetryResult", errors=(400, 404, 409),
    ),
    Endpoint(
        handler="move_jobs", method="POST", path="/v0/topics/{topic}/move", summary="Move jobs to another queue",
        scopes=READ | WRITE | DELETE, body="required", request="MoveRequest", response="MoveResult",
        errors=(400, 404, 409),
    ),
    Endpoint(
        handler="redrive", method="POST", path="/v0/topics/{topic}/redrive", summary="Take dead letters back",
        scopes=READ | WRITE | DELETE, body="empty_ok", request="RedriveRequest", response="RedriveResult",
        errors=(400, 404, 409),
    ),
    *(
        Endpoint(
            handler=f"{verb}_queue", method="POST", path=f"/v0/topics/{{topic}}/{verb}", summary=summary,
            scopes=ADMIN, response="PauseResult", errors=(404, 409),
        )
        for verb, summary in (("pause", "Stop the hand-out of jobs"), ("resume", "Start the hand-out again"))
    ),
    Endpoint(
        handler="segments", method="GET", path="/v0/topics/{topic}/segments", summary="Manifest of stored segments",
        scopes=READ, response="Segments", errors=(404,),
    ),
    Endpoint(
        handler="frames", method="GET", path="/v0/topics/{topic}/frames", summary="Stored records in bulk",
        scopes=READ, media="application/vnd.topics.frames", errors=(400, 404, 429),
        query=(
            Param("from_seq", "integer", "the last seq the reader has; default 0"),
            Param("to_seq", "integer", "the last seq wanted; default is the head"),
            Param("max_bytes", "integer", "stop before more bytes than this; default and at most 8 MiB"),
        ),
    ),
    Endpoint(
        handler="put_router", method="PUT", path="/v0/routers/{router}", summary="Create or reconfigure a router",
        scopes=ADMIN, body="required", request="PutRouterRequest", response="RouterState", ok=(200, 201),
        errors=(400, 404, 409, 429),
    ),
    Endpoint(
        handler="get_router", method="GET", path="/v0/routers/{router}", summary="Router state",
        scopes=READ, response="RouterState", errors=(404,),
    ),
    Endpoint(
        handler="list_routers", method="GET", path="/v0/routers", summary="List routers",
        scopes=READ, response="RouterPage", errors=(400,),
        query=(
            _PREFIX, Param("source", "string", "exact name"), Param("dest", "string", "exact name"),
            _PAGE_SIZE, _CURSOR,
        ),
    ),
    Endpoint(
        handler="delete_router", method="DELETE", path="/v0/routers/{router}", summary="Drop a router",
        scopes=DELETE, response="DeleteRouterResult",
    ),
    Endpoint(
        handler="put_schedule", method="PUT", path="/v0/schedules/{schedule}", summary="Create or replace a schedule",
        scopes=ADMIN, body="required", request="PutScheduleRequest", response="ScheduleState", ok=(200, 201),
        errors=(400, 409, 429),
    ),
    Endpoint(
        handler="get_schedule", method="GET", path="/v0/schedules/{schedule}", summary="Schedule state",
        scopes=READ, response="ScheduleState", errors=(404,),
    ),
    Endpoint(
        handler="list_schedules", method="GET", path="/v0/schedules", summary="List schedules",
        scopes=READ, response="SchedulePage", errors=(400,),
        query=(_PREFIX, Param("topic", "string", "exact name"), _PAGE_SIZE, _CURSOR),
    ),
    Endpoint(
        handler="delete_schedule", method="DELETE", path="/v0/schedules/{schedule}", summary="Drop a schedule",
        scopes=DELETE, response="ScheduleDropped",
    ),
    Endpoint(
        handler="run_schedule", method="POST", path="/v0/schedules/{schedule}/run", summary="One tick now",
        scopes=WRITE, response="ScheduleRun", errors=(404, 422),
    ),
    *(
        Endpoint(
            handler=f"{verb}_schedule", method="POST", path=f"/v0/schedules/{{schedule}}/{verb}", summary=summary,
            scopes=ADMIN, response="ScheduleState", errors=(404,),
        )
        for verb, summary in (("pause", "Stop the ticks of a schedule"), ("resume", "Start its ticks again"))
    ),
    Endpoint(
        handler="create_watch", method="POST", path="/v0/watch", summary="Create a watch session",
        scopes=READ, body="required", request="WatchRequest", response="WatchResult", errors=(400, 404, 429),
        query=(Param("lenient", "boolean", "drop unknown topics; default false"),),
    ),
    Endpoint(
        handler="watch_stream", method="GET", path="/v0/watch/{wid}", summary="The session's server-sent events",
        guard="session", media="text/event-stream", errors=(403, 404, 406, 429), takes_query_token=True,
        takes_stream_token=True,
        query=(_TOKEN,), headers=("Last-Event-ID",),
    ),
    Endpoint(
        handler="websocket", method="GET", path="/v0/ws", summary="WebSocket data plane",
        ok=(101,), errors=(400, 429), takes_stream_token=True, acts=True,
        query=(Param("token", "string", "a stream token, where no Authorization header can be sent"),),
    ),
    Endpoint(
        handler="create_token", method="POST", path="/v0/tokens", summary="A short-lived token for streams",
        scopes=READ, body="empty_ok", request="TokenRequest", response="StreamToken", ok=(200,), errors=(400, 429),
    ),
    *(
        Endpoint(handler="health", method="GET", path=path, summary="Liveness", guard="probe", response="Health")
        for path in ("/v0/health", "/healthz")
    ),
    *(
        Endpoint(handler="ready", method="GET", path=path, summary="Readiness", guard="probe", response="Ready")
        for path in ("/v0/ready", "/readyz")
    ),
    *(
        Endpoint(
            handler="metrics", method="GET", path=path, summary="Metrics, as text or JSON by Accept",
            scopes=READ, response="Metrics",
        )
        for path in ("/v0/metrics", "/metrics")
    ),
    Endpoint(handler="access", method="GET", path="/v0/access", summary="What the key may do", response="AccessResult"),
    Endpoint(handler="openapi", method="GET", path="/openapi.json", summary="This contract", response="OpenApi"),
    Endpoint(
        handler="root", method="GET", path="/", summary="Leads to the web console", media="text/plain",
        ok=(303,), guard="open",
    ),
    Endpoint(handler="console", method="GET", path="/console", summary="Web console", media="text/html", guard="open"),
    Endpoint(
        handler="console_file", method="GET", path="/console/{file}", summary="A file of the web console",
        media="application/octet-stream", errors=(404,), guard="open",
    ),
)  # fmt: skip
