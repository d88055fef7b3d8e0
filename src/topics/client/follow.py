"""Follow, blocking: drives a `Following` over the transport until the client is closed."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from topics.client.following import SILENCE_S_MAX, Following
from topics.client.sse import Frame, SseReader
from topics.client.transport import Transport
from topics.errors import TopicsError, Unreachable
from topics.model.paging import After, Gap, Gaps
from topics.model.results import Record


def follow(
    transport: Transport, topic: str, after: After, *, nodes: tuple[str, ...], gaps: Gaps
) -> Iterator[Record | Gap]:
    following = Following(topic, after, nodes=nodes, gaps=gaps, policy=transport.policy)
    while not transport.closed.is_set():
        try:
            if following.polls:
                page = transport.once(following.poll_call())
                yield from following.page(page)
            else:
                for frame in _frames(transport, following):
                    yield from following.frame(frame)
        except TopicsError as error:
            if transport.closed.is_set():
                return
            transport.closed.wait(following.failed(error, now=time.monotonic(), chance=random.random))


def _frames(transport: Transport, following: Following) -> Iterator[Frame]:
    """The frames of one stream, until it ends or breaks."""
    session = following.session_call()
    if session is not None:
        following.session_made(transport.once(session))
    call, mark = following.stream_call()
    link, reader = transport.open_stream(call, extra=mark), SseReader()
    try:
        while (data := link.pieces(timeout_s=SILENCE_S_MAX)) is not None:
            yield from reader.feed(data)
    finally:
        transport.end_stream(link)
    raise Unreachable("the stream came to its end", sent=True)
