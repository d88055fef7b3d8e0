"""Accept headers."""

import pytest

from topics.wire.incoming.request_head import takes_events, wants_json


@pytest.mark.parametrize(
    "accept", [None, b"", b"text/event-stream", b"text/html, */*;q=0.1", b"a/b,text/event-stream;q=0"]
)
def test_a_stream_may_be_sent(accept: bytes | None) -> None:
    assert takes_events(accept)


@pytest.mark.parametrize("accept", [b"application/json", b"text/*", b"text/html"])
def test_a_stream_may_not_be_sent(accept: bytes) -> None:
    assert not takes_events(accept)


def test_metrics_as_json() -> None:
    assert wants_json(b"text/plain, application/json;q=0.5")
    for accept in (None, b"", b"*/*", b"text/plain"):
        assert not wants_json(accept)
