"""Follow for coroutines: drives a `Following` over the asyncio transport until the client is closed."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator

from topics.client.atransport import AsyncTransport
from topics.client.following import SILENCE_S_MAX, Following
from topics.client.sse import Frame, SseReader
from topics.errors import TopicsError, Unreachable
from topics.model.paging import After, Gap, Gaps
from topics.model.results import Record


async def afollow(
    transport: AsyncTransport, topic: str, after: After, *, nodes: tuple[str, ...], gaps: Gaps
) -> AsyncIterator[Record | Gap]:
    following = Following(topic, after, nodes=nodes, gaps=gaps, policy=transport.policy)
    while not transport.closed.is_set():
        try:
            if following.polls:
                page = await transport.once(following.poll_call())
                for item in following.page(page):
                    yield item
            else:
                async for frame in _frames(transport, following):
                    for item in following.frame(frame):
                        yield item
        except TopicsError as error:
            if transport.closed.is_set():
                return
            await transport.pause(following.failed(error, now=time.monotonic(), chance=random.random))


async def _frames(transport: AsyncTransport, following: Following) -> AsyncIterator[Frame]:
    """The frames of one stream, until it ends or breaks."""
    session = following.session_call()
    if session is not None:
        following.session_made(await transport.once(session))
    call, mark = following.stream_call()
    link, reader = await transport.open_stream(call, extra=mark), SseReader()
    try:
        while (data := await link.pieces(timeout_s=SILENCE_S_MAX)) is not None:
            for frame in reader.feed(data):
                yield frame
    finally:
        transport.end_stream(link)
    raise Unreachable("the stream came to its end", sent=True)
