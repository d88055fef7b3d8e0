"""Batches: what one read found, rendered for those who were served by it.

Watchers at one position with equal bounds share one read; a watcher that hides its own node's records shares it too
whenever the read reached the head, for then hiding is all that differs. Always holds: a batch equals what the watcher's
own read would have given. Nothing large is rendered on the loop. Asked by `Subscription` and `BroadcastGroup`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from topics import limits
from topics.api.live.history_throttle import SMALL_BATCH_BYTES, SMALL_BATCH_RECORDS, HistoryThrottle
from topics.core.reading.request import ReadAhead
from topics.core.reading.walk import ReadOutcome, ReadRequest
from topics.core.topic import TopicLog
from topics.engine.delivery.watched import Service, Watched
from topics.engine.reading.reads import Reads
from topics.engine.ticket import Ticket, chain, resolved
from topics.model.names import TagMatch
from topics.model.run import RecordRun
from topics.wire.outgoing.records import View, render_runs
from topics.wire.outgoing.render_cache import BodyPool, TopicBodies


def nodes_of(run: RecordRun) -> list[bytes | None]:
    """Who wrote each record; None for records without a node."""
    return [record.node for record in run.records()]


T = TypeVar("T")


class OffLoop(Protocol):
    """Run a job on a thread, then tell its outcome on the loop."""

    def __call__(self, job: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None: ...


class Bounds(NamedTuple):
    """What two watchers must have in common to share a read."""

    limit: int
    budget_bytes: int
    strong: bool = False
    tag: TagMatch | None = None


class Options(NamedTuple):
    """What a subscription asked for."""

    bounds: Bounds
    view: View
    nodes: frozenset[bytes] | None = None


class Reader(Protocol):
    """Who wants a batch: where it stands, and in which life of the topic."""

    at: int
    epoch: int
    options: Options


class RenderedBatch:
    """One read's outcome. `memo` is for frames built from it that several connections can send. `is_old`: it came out
    of files, so nobody else is likely to want its bodies, and they are not looked for among the shared ones."""

    __slots__ = ("_building", "_built", "_texts", "_watched", "epoch", "is_old", "memo", "outcome", "records")

    def __init__(self, outcome: ReadOutcome, watched: Watched, *, is_old: bool = False) -> None:
        self.outcome = outcome
        self.records = outcome.records
        self.epoch = watched.topic.epoch
        self._watched = watched
        self.is_old = is_old
        self._texts: dict[View, bytes] = {}
        self._building: dict[object, Ticket[None]] = {}
        self._built: set[object] = set()
        self.memo: dict[Any, Any] = {}

    @property
    def is_large(self) -> bool:
        """Too much to render on the loop."""
        return is_large(self.outcome)

    def text(self, view: View) -> bytes:
        """The records as JSON, joined by commas."""
        text = self._texts.get(view)
        if text is None:
            shared = self._watched.is_shared and not self.is_old
            text = self._texts[view] = b",".join(self.bodies(view)) if shared else render_runs(self.outcome.runs, view)
        return text

    def bodies(self, view: View) -> list[bytes]:
        cache = self._watched.bodies
        assert isinstance(cache, TopicBodies)
        runs = self.outcome.runs
        if len(runs) == 1:
            return cache.render(runs[0], view)
        return [body for run in runs for body in cache.render(run, view)]

    def is_built(self, key: object) -> bool:
        """Are the frames of this key there, or is there too little of them to matter?"""
        return not self.is_large or not self.records or key in self._built

    def build_elsewhere(self, key: object, view: View, build: Callable[[], object], off_loop: OffLoop) -> Ticket[None]:
        """Render a large batch and build its frames on a thread, once for all whose key is equal."""
        ticket = self._building.get(key)
        if ticket is None:
            ticket = self._building[key] = Ticket()
            off_loop(partial(self._build, view, build), partial(self._has_built, key, ticket))
        return ticket

    def _build(self, view: View, build: Callable[[], object]) -> None:
        if view not in self._texts:
            self._texts[view] = render_runs(self.outcome.runs, view)
        build()

    def _has_built(self, key: object, ticket: Ticket[None], _: None, error: BaseException | None) -> None:
        if error is not None:
            del self._building[key]
            ticket.fail(error)
        else:
            self._built.add(key)
            ticket.resolve(None)


class WithoutNodes(RenderedBatch):
    """A batch that reached the head, as somebody sees it who hides some nodes' records."""

    __slots__ = ("_picks", "_whole")

    def __init__(self, whole: RenderedBatch, picks: list[int], watched: Watched) -> None:
        super().__init__(whole.outcome, watched)
        self._whole = whole
        self._picks = picks
        self.records = len(picks)

    def text(self, view: View) -> bytes:
        bodies = self._whole.memo.get(view)
        if bodies is None:
            bodies = self._whole.memo[view] = self._whole.bodies(view)
        return b",".join([bodies[at] for at in self._picks])


def hide(whole: RenderedBatch, nodes: frozenset[bytes], watched: Watched) -> RenderedBatch:
    """What is left of a batch that reached the head; the same batch if nothing has to be hidden."""
    authors: tuple[list[bytes | None], set[bytes | None]] | None = whole.memo.get("authors")
    if authors is None:
        each = [node for run in whole.outcome.runs for node in nodes_of(run)]
        authors = whole.memo["authors"] = each, set(each)
    if nodes.isdisjoint(authors[1]):
        return whole
    return WithoutNodes(whole, [at for at, node in enumerate(authors[0]) if node not in nodes], watched)


class NextBatch:
    """Finds a watcher's next batch. `head_limit` says how far a strong watcher of a topic may see."""

    def __init__(
        self,
        reads: Reads,
        *,
        head_limit: Callable[[TopicLog], int],
        off_loop: OffLoop,
        throttle: HistoryThrottle,
    ) -> None:
        self._reads = reads
        self._head_limit = head_limit
        self.off_loop = off_loop
        self.throttle = throttle
        self._pool = BodyPool()

    def shared(self, service: Service, reader: Reader, granted_bytes: int) -> RenderedBatch | Ticket[RenderedBatch]:
        """In a service: with others, if they ask for the same. `granted_bytes`: more cannot be sent now."""
        options, topic = reader.options, service.topic
        nodes = options.nodes if topic.config.dedupe_node else None
        if nodes is not None and topic.head - reader.at > options.bounds.limit:
            return self.alone(service.watched, reader, granted_bytes)
        key = reader.at, reader.epoch, options.bounds, granted_bytes
        batch = service.shared.get(key)
        if batch is None:
            batch = service.shared[key] = self._read(service.watched, reader, None, granted_bytes)
        assert isinstance(batch, RenderedBatch | Ticket)
        if nodes is None or not isinstance(batch, RenderedBatch):
            return batch if nodes is None else self.alone(service.watched, reader, granted_bytes)
        if batch.outcome.caught_up and not batch.is_large:
            return hide(batch, nodes, service.watched)
        return self.alone(service.watched, reader, granted_bytes)

    def alone(
        self, watched: Watched, reader: Reader, granted_bytes: int, ahead: ReadAhead | None = None
    ) -> RenderedBatch | Ticket[RenderedBatch]:
        """A read of its own; a ticket if files have to be asked. With `ahead` it is one of many: those are small while
        somebody writes."""
        return self._read(watched, reader, reader.options.nodes, granted_bytes, ahead)

    def _read(
        self,
        watched: Watched,
        reader: Reader,
        nodes: frozenset[bytes] | None,
        granted_bytes: int,
        ahead: ReadAhead | None = None,
    ) -> RenderedBatch | Ticket[RenderedBatch]:
        bounds = reader.options.bounds
        limit, budget_bytes = bounds.limit, min(bounds.budget_bytes, granted_bytes)
        if ahead is not None and self.throttle.is_live:
            limit, budget_bytes = min(limit, SMALL_BATCH_RECORDS), min(budget_bytes, SMALL_BATCH_BYTES)
        request = ReadRequest(
            from_seq=reader.at,
            limit=limit,
            budget_bytes=budget_bytes,
            nodes=nodes,
            tag=bounds.tag,
            epoch=reader.epoch,
            head_limit=self._head_limit(watched.topic) if bounds.strong else None,
            ahead=ahead,
            shows_floor=False,
        )
        ticket = self._reads.read(watched.topic, request)
        if ticket.done and ticket.error is None:
            outcome = ticket.result().outcome
            return self._batch(outcome, watched, is_old=ahead is not None and outcome.next_from_seq < ahead.next_seq)
        return chain(ticket, lambda done: resolved(self._batch(done.outcome, watched, is_old=True)))

    def _batch(self, outcome: ReadOutcome, watched: Watched, *, is_old: bool) -> RenderedBatch:
        if watched.bodies is None:
            watched.bodies = TopicBodies(self._pool)
        return RenderedBatch(outcome, watched, is_old=is_old)


def is_large(outcome: ReadOutcome) -> bool:
    """Is this more than may be rendered on the loop (`docs/spec/delivery.md#sec-11`)?"""
    return outcome.size_bytes > limits.RENDER_INLINE_BYTES_MAX
