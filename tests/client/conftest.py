"""Doors: the same database through the embedded library, the blocking client and the asyncio client."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any, cast

import pytest
from tests.api.server import LiveServer

import topics
from topics.client import Client
from topics.client.verbs import TopicVerbs

_names = count()


class Waiting:
    """Coroutine verbs as plain ones: every result is waited for on a loop of another thread."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return self._calling(found) if callable(found) else found

    def _calling(self, verb: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            given = verb(*args, **kwargs)
            if inspect.iscoroutine(given):
                done = asyncio.run_coroutine_threadsafe(given, self._loop).result(30)
                return Waiting(done, self._loop) if isinstance(done, TopicVerbs) else done
            if isinstance(given, AsyncIterator):
                return self._items(given)
            return Waiting(given, self._loop)

        return call

    def _items(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        end = object()

        async def step() -> Any:
            return await anext(items, end)

        try:
            while (item := asyncio.run_coroutine_threadsafe(step(), self._loop).result(30)) is not end:
                yield item
        finally:
            asyncio.run_coroutine_threadsafe(items.aclose(), self._loop).result(30)  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever, daemon=True)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join(10)
    made.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("served")) as live:
        yield live


@pytest.fixture
def url(server: LiveServer) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture(params=["embedded", "blocking", "asyncio"], scope="module")
def door(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, loop: asyncio.AbstractEventLoop
) -> Iterator[Client]:
    if request.param == "embedded":
        with topics.open(str(tmp_path_factory.mktemp("embedded")), wal_shards=2) as db:
            yield cast(Client, db)
        return
    live: LiveServer = request.getfixturevalue("server")
    address = f"http://127.0.0.1:{live.port}"
    if request.param == "blocking":
        with topics.connect(address, timeout=20, retry_s=5) as client:
            yield client
        return

    async def connected() -> Any:
        return topics.aconnect(address, timeout=20, retry_s=5)

    waiting = Waiting(asyncio.run_coroutine_threadsafe(connected(), loop).result(10), loop)
    yield cast(Client, waiting)
    waiting.close()


@pytest.fixture
def name() -> str:
    """A name nobody used yet."""
    return f"t{next(_names)}"
