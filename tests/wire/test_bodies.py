"""Content types and empty bodies."""

import pytest

from topics.errors import InvalidRequest, UnsupportedMediaType
from topics.wire.endpoints import ENDPOINTS, BodyKind
from topics.wire.incoming.request_head import body_text

GOOD = [b"application/json", b"application/json; charset=utf-8", b" \tapplication/json", b"application/json;x"]
BAD = [
    None,
    b"",
    b"text/plain",
    b"application/problem+json",
    b"application/xml",
    b"Application/JSON",
    b"x application/json",
]


@pytest.mark.parametrize("content_type", GOOD)
def test_json_is_taken(content_type: bytes) -> None:
    assert body_text("required", content_type=content_type, body=b"{}") == b"{}"


@pytest.mark.parametrize("content_type", BAD)
@pytest.mark.parametrize("kind", ["required", "empty_ok", "never_empty"])
def test_anything_else_is_415(kind: BodyKind, content_type: bytes | None) -> None:
    with pytest.raises(UnsupportedMediaType):
        body_text(kind, content_type=content_type, body=b"{}")


@pytest.mark.parametrize("content_type", [*GOOD, *BAD])
def test_empty_bodies(content_type: bytes | None) -> None:
    assert body_text("empty_ok", content_type=content_type, body=b"") == b"{}"
    with pytest.raises(InvalidRequest):
        body_text("never_empty", content_type=content_type, body=b"")
    if content_type in GOOD:
        assert body_text("required", content_type=content_type, body=b"") == b""
    else:
        with pytest.raises(UnsupportedMediaType):
            body_text("required", content_type=content_type, body=b"")


def test_blanks_are_a_body() -> None:
    with pytest.raises(UnsupportedMediaType):
        body_text("empty_ok", content_type=None, body=b" ")


def test_which_endpoint_takes_which_body() -> None:
    kinds = {row.handler: row.body for row in ENDPOINTS}
    assert [handler for handler, kind in kinds.items() if kind == "empty_ok"] == [
        "put_topic",
        "diff",
        "put_cursor",
        "redrive",
        "create_token",
    ]
    assert [handler for handler, kind in kinds.items() if kind == "never_empty"] == ["claim"]
    without_body = {"pause_queue", "resume_queue", "run_schedule", "pause_schedule", "resume_schedule"}
    for row in ENDPOINTS:
        may_have_one = row.method in ("PUT", "POST") and row.handler not in without_body
        assert (row.body != "none") == may_have_one == (row.request is not None)
