"""One server for the whole module, every test over HTTP/1.1 and over HTTP/2."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from tests.api.client import Client
from tests.api.server import LiveServer

_names = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("data")) as live:
        yield live


@pytest.fixture(params=["h1", "h2c"], scope="module")
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(server: LiveServer, dialect: str) -> Iterator[Client]:
    made = Client(server.port, http2=dialect == "h2c")
    yield made
    made.close()


@pytest.fixture
def topic() -> str:
    """A name nobody used yet."""
    return f"t{next(_names)}"
