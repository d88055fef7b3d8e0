"""Doors: the verbs that the embedded library and the blocking client share. One contract suite runs over all doors.

`topics.open` gives a `DatabaseDoor` on a directory, `topics.connect` one on a server. The asyncio client has the same
verbs as coroutines. Handles are cheap and hold no state; nothing is created by making one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from topics.errors import InvalidRequest
from topics.model.config import TopicConfig
from topics.model.match import TagMatch
from topics.model.reading import Reading
from topics.model.results import (
    AckResult,
    AppendResult,
    ClaimResult,
    DeleteResult,
    ExtendResult,
    Job,
    NackResult,
    RouterState,
    RouterSummary,
    TopicState,
    TopicSummary,
)
from topics.model.router import Guarantee

Match = str | list[str] | TagMatch | None
Seqs = Iterable[int | Job]
"""Jobs by their seqs. A `Job` brings its lease id along, so a lease that has passed on is not settled."""


def listed(jobs: Seqs) -> list[int | Job]:
    """What `ack`, `nack` and `extend` take: several, and no single one by itself."""
    if isinstance(jobs, int | Job):
        raise InvalidRequest("ack, nack and extend take a list of jobs or seqs; put a single one into brackets")
    return list(jobs)


class TopicDoor(Reading, Protocol):
    def append(
        self,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Any = None,
        key: str | None = None,
    ) -> AppendResult: ...
    def append_many(
        self, records: Iterable[Any], *, node: str | None = None, key: str | None = None
    ) -> AppendResult: ...
    def delete(self, *, before_seq: int | None = None, match: Match = None) -> DeleteResult: ...
    def state(self, *, touch: bool = True) -> TopicState: ...
    def configure(self, **config: Any) -> TopicConfig: ...
    def drop(self, *, if_empty: bool = False) -> bool: ...


class QueueDoor(TopicDoor, Protocol):
    """A topic of type `queue`; its first append creates it as one."""

    def claim(self, node: str, *, max: int = 1, lease_ms: int | None = None) -> ClaimResult: ...
    def ack(self, jobs: Seqs, *, node: str) -> AckResult: ...
    def nack(self, jobs: Seqs, *, node: str, delay_ms: int = 0) -> NackResult: ...
    def extend(self, jobs: Seqs, *, node: str, lease_ms: int) -> ExtendResult: ...


class RouterDoor(Protocol):
    name: str

    def put(
        self,
        source: str,
        dest: str,
        *,
        preserve_node: bool = True,
        preserve_tag: bool = True,
        create_dest: bool = True,
        filter: Match = None,
        allow_cycle: bool = False,
        guarantee: Guarantee = "at_least_once",
    ) -> RouterState: ...
    def get(self) -> RouterState: ...
    def delete(self) -> bool: ...


class DatabaseDoor(Protocol):
    def topic(self, name: str, **config: Any) -> TopicDoor: ...
    def queue(self, name: str, **config: Any) -> QueueDoor: ...
    def router(self, name: str) -> RouterDoor: ...
    def topics(self, prefix: str = "") -> Iterator[TopicSummary]: ...
    def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None
    ) -> Iterator[RouterSummary]: ...
    def close(self) -> None: ...
