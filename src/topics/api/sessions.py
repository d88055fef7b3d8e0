"""Sessions: watch sessions by id: what is watched, by whom, and how far it was delivered (http-api.md section 17.2).

Always holds: a session without an open stream for 300,000 ms is gone, at the latest when the next one is made or
opened; an open stream keeps its session; the number of sessions never exceeds the cap."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from topics import limits
from topics.api.batches import Options
from topics.core.lineage import is_foreign
from topics.core.topic import TopicState
from topics.errors import NotFound, Throttled
from topics.model.position import Position
from topics.wire.base64url import encode_base64url

WID_BYTES = 16
CROSSED_IDS_MAX = 1024


class Place:
    """One topic of a session: the cursor, and the life of the topic it belongs to.

    A resume id may come without the epoch, from an older client. So after a topic was recreated, the cursors sent since
    then are remembered: any other number is of the old life, and the news of the new one is told again. A number that
    both lives used counts as the old one: the new records up to it are then sent twice, but none is skipped."""

    __slots__ = ("_before", "_ids_since", "cursor", "epoch", "name")

    def __init__(self, name: str, *, cursor: int, epoch: int) -> None:
        self.name = name
        self.cursor = cursor
        self.epoch = epoch
        self._before = 0, 0  # epoch and cursor in the old life
        self._ids_since: set[int] | None = None

    def move(self, cursor: int, epoch: int, *, gap_at: int | None = None) -> None:
        """Frames up to this cursor were handed to the transport; a tombstone before them had an id at `gap_at`."""
        if epoch != self.epoch:
            self._before = self.epoch, self.cursor
            self.epoch = epoch
            self._ids_since = set()
        if self._ids_since is not None:
            self._ids_since.add(cursor)
            if gap_at is not None:
                self._ids_since.add(gap_at)
            if len(self._ids_since) > CROSSED_IDS_MAX:
                self._ids_since = None
        self.cursor = cursor

    @property
    def is_plain(self) -> bool:
        """Moving on is all there is to a move: no id has to be remembered."""
        return self._ids_since is None

    def go_back(self, given: Position, topic: TopicState | None) -> None:
        """A client came back with this position in its id; it may only move the place back, or to another life, which
        the next read announces."""
        if given.epoch is None:
            self._go_back_to(given.seq)
        elif given.epoch == self.epoch or (topic is not None and not is_foreign(topic, *given)):
            self.cursor = min(self.cursor, given.seq)
        else:
            self.epoch, self.cursor = given.epoch, given.seq

    def _go_back_to(self, cursor: int) -> None:
        ids_since, self._ids_since = self._ids_since, None
        if ids_since is not None and (cursor not in ids_since or cursor == self._before[1]):
            self.epoch, self.cursor = self._before[0], cursor
        else:
            self.cursor = min(self.cursor, cursor)


class Session:
    __slots__ = ("heartbeat_ms", "idle_since_ms", "options", "owner", "places", "streams", "wid")

    def __init__(
        self, places: list[Place], options: Options, *, heartbeat_ms: int, owner: bytes | None, now_ms: int
    ) -> None:
        self.wid = "wid_" + encode_base64url(secrets.token_bytes(WID_BYTES)).decode()
        self.places = sorted(places, key=lambda place: place.name)
        self.options = options
        self.heartbeat_ms = heartbeat_ms
        self.owner = owner  # digest of the key that made it
        self.streams = 0
        self.idle_since_ms = now_ms

    def resume(self, given: dict[str, Position] | None, topics: Mapping[str, TopicState]) -> None:
        """Apply a `Last-Event-ID`."""
        if given:
            for place in self.places:
                if (position := given.get(place.name)) is not None:
                    place.go_back(position, topics.get(place.name))


class Sessions:
    def __init__(self, *, cap: int, now_ms: Callable[[], int], ttl_ms: int = limits.SESSION_TTL_MS) -> None:
        self._cap = cap
        self._now_ms = now_ms
        self._ttl_ms = ttl_ms
        self._by_id: dict[str, Session] = {}
        self._idle: dict[str, Session] = {}  # without a stream, the longest idle first

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, places: list[Place], options: Options, *, heartbeat_ms: int, owner: bytes | None) -> Session:
        self.collect()
        if self._cap and len(self._by_id) >= self._cap:
            raise Throttled.cap("max_watch_sessions", max=self._cap)
        session = Session(places, options, heartbeat_ms=heartbeat_ms, owner=owner, now_ms=self._now_ms())
        self._by_id[session.wid] = self._idle[session.wid] = session
        return session

    def find(self, wid: str) -> Session:
        self.collect()
        session = self._by_id.get(wid)
        if session is None:
            raise NotFound("there is no such watch session, or it has expired")
        return session

    def opened(self, session: Session) -> None:
        session.streams += 1
        self._idle.pop(session.wid, None)

    def stream_ended(self, session: Session) -> None:
        session.streams -= 1
        if not session.streams:
            session.idle_since_ms = self._now_ms()
            self._idle[session.wid] = session

    def collect(self) -> None:
        """Drop what has expired."""
        oldest = self._now_ms() - self._ttl_ms
        while self._idle:
            session = next(iter(self._idle.values()))
            if session.idle_since_ms > oldest:
                return
            del self._idle[session.wid], self._by_id[session.wid]
