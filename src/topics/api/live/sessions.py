"""Sessions: watch sessions by id: what is watched, by whom, and how far it was delivered
(`docs/spec/http-api.md#sec-17-2`).

Always holds: a session without an open stream for 300,000 ms is gone, at the latest when the next one is made or
opened; an open stream keeps its session; neither the number of sessions nor that of one holder exceeds its cap. Where a
cap is reached, a session that was without a stream for 10,000 ms makes room."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping

from topics import limits
from topics.api.live.batches import Options
from topics.core.lineage import is_foreign
from topics.core.topic import TopicLog
from topics.errors import NotFound, Throttled
from topics.model.position import Position
from topics.wire.access.keys import ClientId
from topics.wire.page_tokens import encode_base64url

WID_BYTES = 16
CROSSED_IDS_MAX = 1024
NOBODY = b""  # no key's digest


class SessionCursor:
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

    def go_back(self, given: Position, topic: TopicLog | None) -> None:
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
    __slots__ = ("client", "heartbeat_ms", "idle_since_ms", "options", "owner", "places", "streams", "wid")

    def __init__(
        self,
        places: list[SessionCursor],
        options: Options,
        *,
        heartbeat_ms: int,
        owner: bytes | None,
        client: ClientId,
        now_ms: int,
    ) -> None:
        self.wid = "wid_" + encode_base64url(secrets.token_bytes(WID_BYTES)).decode()
        self.places = sorted(places, key=lambda place: place.name)
        self.options = options
        self.heartbeat_ms = heartbeat_ms
        self.owner = owner  # digest of the key that made it
        self.client = client  # whose share it takes from
        self.streams = 0
        self.idle_since_ms = now_ms

    def resume(self, given: dict[str, Position] | None, topics: Mapping[str, TopicLog]) -> None:
        """Apply a `Last-Event-ID`."""
        if given:
            for place in self.places:
                if (position := given.get(place.name)) is not None:
                    place.go_back(position, topics.get(place.name))


class Sessions:
    """`cap_each` is the share of one holder; those that are not counted (None) have none. 0: no cap."""

    def __init__(
        self, *, cap: int, now_ms: Callable[[], int], cap_each: int = 0, ttl_ms: int = limits.SESSION_TTL_MS
    ) -> None:
        self._cap = cap
        self._cap_each = cap_each
        self._now_ms = now_ms
        self._ttl_ms = ttl_ms
        self._by_id: dict[str, Session] = {}
        self._idle: dict[str, Session] = {}  # without a stream, the longest idle first
        self._by_client: dict[ClientId, _ClientSessions] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def add(
        self,
        places: list[SessionCursor],
        options: Options,
        *,
        heartbeat_ms: int,
        owner: bytes | None,
        client: ClientId = None,
    ) -> Session:
        self.collect()
        self._make_room(client)
        now_ms = self._now_ms()
        session = Session(places, options, heartbeat_ms=heartbeat_ms, owner=owner, client=client, now_ms=now_ms)
        self._by_id[session.wid] = session
        self._by_client.setdefault(client, _ClientSessions()).count += 1
        self._rests(session)
        return session

    def _make_room(self, client: ClientId) -> None:
        """For one more; raises Throttled if nobody who holds a place has gone."""
        mine = self._by_client.get(client)
        if client is not None and self._cap_each and mine is not None and mine.count >= self._cap_each:
            if not self._yields(mine.idle):
                raise Throttled.cap("max_watch_sessions_per_client", max=self._cap_each)
        elif self._cap and len(self._by_id) >= self._cap:
            most = max(self._by_client.values(), key=lambda of_client: of_client.count)
            if not self._yields(most.idle) and not self._yields(self._idle):
                raise Throttled.cap("max_watch_sessions", max=self._cap)

    def _yields(self, idle: dict[str, Session]) -> bool:
        """Drop the longest idle of these, if whoever had it has been gone for long enough."""
        session = next(iter(idle.values()), None)
        if session is None or session.idle_since_ms > self._now_ms() - limits.SESSION_YIELD_MS:
            return False
        self._drop(session)
        return True

    def find(self, wid: str) -> Session:
        self.collect()
        session = self._by_id.get(wid)
        if session is None:
            raise NotFound("there is no such watch session, or it has expired")
        return session

    def opened(self, session: Session) -> None:
        session.streams += 1
        if self._idle.pop(session.wid, None) is not None:
            del self._by_client[session.client].idle[session.wid]

    def stream_ended(self, session: Session) -> None:
        session.streams -= 1
        if not session.streams:
            session.idle_since_ms = self._now_ms()
            self._rests(session)

    def _rests(self, session: Session) -> None:
        self._idle[session.wid] = self._by_client[session.client].idle[session.wid] = session

    def disown(self, owners: Collection[bytes]) -> None:
        """These keys have ended: nobody opens their sessions any more, and they expire."""
        for session in self._by_id.values():
            if session.owner in owners:
                session.owner = NOBODY

    def collect(self) -> None:
        """Drop what has expired."""
        oldest = self._now_ms() - self._ttl_ms
        while self._idle:
            session = next(iter(self._idle.values()))
            if session.idle_since_ms > oldest:
                return
            self._drop(session)

    def _drop(self, session: Session) -> None:
        """An idle one."""
        of_client = self._by_client[session.client]
        del self._idle[session.wid], self._by_id[session.wid], of_client.idle[session.wid]
        of_client.count -= 1
        if not of_client.count:
            del self._by_client[session.client]


class _ClientSessions:
    """The sessions of one holder: how many, and which of them are idle, the longest idle first."""

    __slots__ = ("count", "idle")

    def __init__(self) -> None:
        self.count = 0
        self.idle: dict[str, Session] = {}
