"""Paths: the endpoint table decides 404 and 405, by the path alone."""

import pytest

from topics.errors import InvalidRequest, MethodNotAllowed, NotFound
from topics.wire.endpoints import ENDPOINTS
from topics.wire.incoming.request_head import Routes

ROUTES = Routes(ENDPOINTS)

KNOWN = [
    ("PUT", b"/v0/topics/a", "put_topic", "a"),
    ("GET", b"/v0/topics/a", "get_topic", "a"),
    ("GET", b"/v0/topics", "list_topics", ""),
    ("DELETE", b"/v0/topics/a", "delete_topic", "a"),
    ("POST", b"/v0/topics/a", "write", "a"),
    ("POST", b"/v0/topics/a/diff", "diff", "a"),
    ("POST", b"/v0/topics/a/delete", "delete_records", "a"),
    ("GET", b"/v0/topics/a/latest", "latest", "a"),
    ("POST", b"/v0/topics/a/claim", "claim", "a"),
    ("POST", b"/v0/topics/a/ack", "ack", "a"),
    ("POST", b"/v0/topics/a/nack", "nack", "a"),
    ("POST", b"/v0/topics/a/extend", "extend", "a"),
    ("GET", b"/v0/topics/a/work", "work", "a"),
    ("GET", b"/v0/topics/a/segments", "segments", "a"),
    ("GET", b"/v0/topics/a/frames", "frames", "a"),
    ("PUT", b"/v0/routers/a", "put_router", "a"),
    ("GET", b"/v0/routers/a", "get_router", "a"),
    ("GET", b"/v0/routers", "list_routers", ""),
    ("DELETE", b"/v0/routers/a", "delete_router", "a"),
    ("POST", b"/v0/watch", "create_watch", ""),
    ("GET", b"/v0/watch/wid_x", "watch_stream", "wid_x"),
    ("GET", b"/v0/ws", "websocket", ""),
    ("GET", b"/v0/health", "health", ""),
    ("GET", b"/healthz", "health", ""),
    ("GET", b"/v0/ready", "ready", ""),
    ("GET", b"/readyz", "ready", ""),
    ("GET", b"/v0/metrics", "metrics", ""),
    ("GET", b"/metrics", "metrics", ""),
    ("GET", b"/v0/access", "access", ""),
    ("POST", b"/v0/topics/t/cursors/c", "commit_cursor", "t"),
    ("PUT", b"/v0/topics/t/cursors/c", "put_cursor", "t"),
    ("GET", b"/v0/topics/t/cursors/c", "get_cursor", "t"),
    ("DELETE", b"/v0/topics/t/cursors/c", "delete_cursor", "t"),
    ("GET", b"/v0/topics/t/cursors", "topic_cursors", "t"),
    ("GET", b"/v0/topics/t/records", "get_records", "t"),
    ("GET", b"/v0/topics/t/records/latest", "newest_record", "t"),
    ("GET", b"/v0/topics/t/records/12", "get_record", "t"),
    ("GET", b"/v0/cursors", "list_cursors", ""),
    ("POST", b"/v0/cursors", "commit_cursors", ""),
    ("POST", b"/v0/tokens", "create_token", ""),
    ("GET", b"/v0/topics/t/jobs", "list_jobs", "t"),
    ("GET", b"/v0/topics/t/workers", "list_workers", "t"),
    ("POST", b"/v0/topics/t/cancel", "cancel_jobs", "t"),
    ("POST", b"/v0/topics/t/retry", "retry_jobs", "t"),
    ("POST", b"/v0/topics/t/move", "move_jobs", "t"),
    ("POST", b"/v0/topics/t/redrive", "redrive", "t"),
    ("POST", b"/v0/topics/t/pause", "pause_queue", "t"),
    ("POST", b"/v0/topics/t/resume", "resume_queue", "t"),
    ("PUT", b"/v0/schedules/a", "put_schedule", "a"),
    ("GET", b"/v0/schedules/a", "get_schedule", "a"),
    ("GET", b"/v0/schedules", "list_schedules", ""),
    ("DELETE", b"/v0/schedules/a", "delete_schedule", "a"),
    ("POST", b"/v0/schedules/a/run", "run_schedule", "a"),
    ("POST", b"/v0/schedules/a/pause", "pause_schedule", "a"),
    ("POST", b"/v0/schedules/a/resume", "resume_schedule", "a"),
    ("GET", b"/openapi.json", "openapi", ""),
    ("GET", b"/", "root", ""),
    ("GET", b"/console", "console", ""),
    ("GET", b"/console/app.js", "console_file", "app.js"),
]


@pytest.mark.parametrize(("method", "path", "handler", "name"), KNOWN)
def test_every_row_is_found(method: str, path: bytes, handler: str, name: str) -> None:
    target = ROUTES.find(method, path)
    assert (target.require().handler, target.name) == (handler, name)


def test_every_row_of_the_table_is_in_the_list_above() -> None:
    assert {handler for _, _, handler, _ in KNOWN} == {row.handler for row in ENDPOINTS}
    assert len(KNOWN) == len(ENDPOINTS)


@pytest.mark.parametrize(("method", "path", "handler", "name"), KNOWN)
def test_head_is_get_and_everything_else_is_405(method: str, path: bytes, handler: str, name: str) -> None:
    here = {known for known, where, _, _ in KNOWN if where == path}
    for other in ("GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "BREW", "get"):
        target = ROUTES.find(other, path)
        if other in here or (other == "HEAD" and "GET" in here):
            assert target.endpoint is not None
        else:
            with pytest.raises(MethodNotAllowed):
                target.require()
        assert set(target.allow.split(", ")) >= here


UNKNOWN = [
    b"", b"/v0", b"/v0/", b"/v0/topics/", b"/v0/topics//", b"/v0/topics//diff", b"/v0/topics/a/",
    b"/v0/topics/a/diff/",
    b"/v0/topics/a/b/c", b"/v0/topics/a/Diff", b"/V0/topics", b"/v1/topics", b"//v0/topics", b"/v0//topics",
    b"/v0/healthz",
    b"/health", b"/v0/metrics/", b"/v0/readyz", b"/v0/routers/", b"/v0/routers/a/b", b"/v0/watch/", b"/v0/watch/a/b",
    b"/v0/ws/",
    b"/v0/ws/x", b"/openapi.json/", b"/console/", b"/console/a/b", b"v0/topics", b"/v0%2Ftopics", b"/v0/topics%2Fa",
    b"/v0/topics/a%2Fdiff/x/y", b"*", b"/v0/topic", b"/v0/topics.json",
]  # fmt: skip


@pytest.mark.parametrize("path", UNKNOWN)
def test_unknown_paths(path: bytes) -> None:
    for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
        with pytest.raises(NotFound):
            ROUTES.find(method, path).require()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (b"/v0/routers/jobs-%3Eaudit", "jobs->audit"),
        (b"/v0/routers/jobs->audit", "jobs->audit"),
        (b"/v0/routers/a%2Fb", "a/b"),
        (b"/v0/routers/a%252Fb", "a%2Fb"),
        (b"/v0/routers/%61", "a"),
        (b"/v0/routers/a+b", "a+b"),
        (b"/v0/routers/%C3%A9", "é"),
        (b"/v0/routers/\xc3\xa9", "é"),
        (b"/v0/routers/%", "%"),
        (b"/v0/routers/%zz", "%zz"),
        (b"/v0/routers/a%0A", "a\n"),
        (b"/v0/%72outers/a", "a"),
        (b"/%760/routers/a", "a"),
        (b"/v0/routers/..", ".."),
        (b"/v0/routers/%2e%2e", ".."),
    ],
)
def test_segments_are_decoded_once_after_splitting(path: bytes, name: str) -> None:
    target = ROUTES.find("GET", path)
    assert (target.require().handler, target.name, target.area) == ("get_router", name, "router")


def test_plain_segments_are_decoded_too() -> None:
    assert ROUTES.find("GET", b"/v0/%74opics").require().handler == "list_topics"
    assert ROUTES.find("GET", b"/%68ealthz").area == "probe"
    assert ROUTES.find("POST", b"/v0/topics/a/%64iff").require().handler == "diff"


@pytest.mark.parametrize(
    "path", [b"/v0/topics/%ff", b"/v0/topics/\xff", b"/v0/topics/a/%ff", b"/%ff", b"/v0/topics/%C3"]
)
def test_bad_utf8_is_400_whatever_the_route(path: bytes) -> None:
    for method in ("GET", "PATCH"):
        with pytest.raises(InvalidRequest):
            ROUTES.find(method, path).require()


@pytest.mark.parametrize(
    ("path", "area", "name"),
    [
        (b"/v0/topics", "topics", ""),
        (b"/v0/topics/", "other", ""),
        (b"/v0/topics/a", "topic", "a"),
        (b"/v0/topics/a/nonsense", "topic", "a"),
        (b"/v0/topics/a/b/c", "topic", "a"),
        (b"/v0/topics/a%2Fb", "topic", "a/b"),
        (b"/v0/routers", "routers", ""),
        (b"/v0/routers/a", "router", "a"),
        (b"/v0/routers/a/b", "other", ""),
        (b"/v0/watch", "watch", ""),
        (b"/v0/watch/w", "stream", "w"),
        (b"/v0/ready", "probe", ""),
        (b"/v0/ws", "other", ""),
        (b"/nowhere", "other", ""),
    ],
)
def test_the_area_of_a_path_does_not_depend_on_the_method(path: bytes, area: str, name: str) -> None:
    for method in ("GET", "PATCH"):
        target = ROUTES.find(method, path)
        assert (target.area, target.name) == (area, name)


def test_rows_without_a_handler_do_not_exist() -> None:
    routes = Routes([row for row in ENDPOINTS if row.handler in ("write", "list_topics")])
    assert routes.find("POST", b"/v0/topics/a").require().handler == "write"
    with pytest.raises(MethodNotAllowed):
        routes.find("GET", b"/v0/topics/a").require()
    with pytest.raises(NotFound):
        routes.find("POST", b"/v0/topics/a/diff").require()
