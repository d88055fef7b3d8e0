"""HttpDoor: the verbs carried out by a server, over a blocking or an asyncio transport."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, TypeVar

from topics.client.following import follow
from topics.client.readers import Reading, Stretches
from topics.client.routes import Condition, Route, append_call, piece_of, whole
from topics.client.transport.forks import tell_of_forks
from topics.client.transport.transport import Transport
from topics.model.paging import Gaps
from topics.model.results import AppendResult
from topics.model.values import Event

Q = TypeVar("Q")
T = TypeVar("T")


class IdempotencyKeys:
    """Idempotency keys of one client: unlike every other client's, and each used once."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(8)
        self._numbers = count(1)
        tell_of_forks(self)

    def forked(self) -> None:
        self._prefix = secrets.token_hex(8)

    def next(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"


class HttpDoor:
    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.compared: set[tuple[str, bytes]] = set()
        self.keys = IdempotencyKeys()

    async def run(self, route: Route[Q, T], name: str, request: Q, part: str = "") -> T:
        return await self.transport.run(route.call(name, request, part))

    async def append(
        self,
        topic: str,
        values: Sequence[Any],
        *,
        node: str | None,
        key: str | None,
        config: bytes | None,
        condition: Condition | None,
    ) -> AppendResult:
        pieces = whole([piece_of(value) for value in values])
        key = self.keys.next() if key is None else key
        has_unique = any(type(value) is Event and value.unique is not None for value in values)
        call = append_call(topic, pieces, key=key, node=node, config=config, condition=condition, has_unique=has_unique)
        return await self.transport.run(call)

    def follow(self, readings: Mapping[str, Reading], *, gaps: Gaps) -> Stretches:
        return follow(self.transport, readings, gaps=gaps)
