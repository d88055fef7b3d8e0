"""FileWork: file work that the engine asks for, carried out with the store on the driver's pools.

Reads go to the read pool, or to the cold pool when they may wait for the cold store. Delete flags are single bytes of
hot files and are written at once; everything that syncs or unlinks is left to maintenance."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from topics.core.delete import finish_cold_delete
from topics.core.effects import Effect, OpResult
from topics.core.slots.extent import Extent, RecordPlace
from topics.core.topic import TopicLog
from topics.engine.context import FetchedRecords
from topics.engine.ticket import Ticket, chain, resolved
from topics.errors import ColdUnavailable
from topics.model.run import EMPTY_RUN
from topics.runtime.drivers.driver import Driver, carried_out
from topics.runtime.store import Store
from topics.storage.fetch import ActiveRead, FetchResult, Read, RecordsMoved, SealedRead, WalRead
from topics.storage.segments.sealed_segment import SealedSegment


class FileWork:
    """`removed` is told what died when the index of a cold segment came."""

    def __init__(
        self,
        store: Store,
        driver: Driver,
        *,
        removed: Callable[[TopicLog, Effect], None],
        checkpoint_soon: Callable[[], None],
        checkpoint: Callable[[], Ticket[Any]],
    ) -> None:
        self._store = store
        self._driver = driver
        self._removed = removed
        self._run_checkpoint = checkpoint
        self.checkpoint_soon = checkpoint_soon
        self.dead_segments: deque[tuple[int, int]] = deque()
        """Topic id and first seq of sealed segments that hold nothing live any more."""
        self.removed_topics: deque[TopicLog] = deque()

    # --- reads ----------------------------------------------------------------------------------------------------

    def fetch(self, topic: TopicLog, extent: Extent) -> Ticket[FetchedRecords]:
        ticket: Ticket[FetchedRecords] = Ticket()
        if extent.place is RecordPlace.INDEX:
            self._load_index(topic, extent, ticket)
            return ticket
        read = self._read_of(topic, extent)
        if read is None:
            ticket.resolve(FetchedRecords(None))
            return ticket

        def fetched(done: Ticket[FetchResult]) -> None:
            error = done.error
            moved = isinstance(error, RecordsMoved) or (isinstance(error, ColdUnavailable) and not cold)
            if moved or (error is not None and self._is_outdated(extent)):
                ticket.resolve(FetchedRecords(None))
            elif error is not None:
                ticket.fail(error)
            else:
                result = done.result()
                part = result.parts[0]
                ticket.resolve(FetchedRecords(part.run, seq_next=part.seq_next, cold_segments=result.cold_segments))

        cold = extent.view is not None and extent.view.tier == "cold"
        if cold:
            reading = carried_out(self._driver.run_cold, lambda: self._fetch_cold(read))
        else:
            reading = carried_out(self._driver.run_read, lambda: self._store.fetcher.fetch([read]))
        reading.then(fetched, ticket.abandon)
        return ticket

    def _fetch_cold(self, read: Read) -> FetchResult:
        assert isinstance(read, SealedRead)
        asked = not read.segment.ready
        read.segment.load_index()
        result = self._store.cold_fetcher.fetch([read])
        result.cold_segments = int(asked or result.cold_segments > 0)
        return result

    def _load_index(self, topic: TopicLog, extent: Extent, ticket: Ticket[FetchedRecords]) -> None:
        """Load the columns of a segment. What waits for the index of a cold one is done as soon as it is here."""
        view: SealedSegment = extent.view  # type: ignore[assignment]
        asked = not view.ready
        run = self._driver.run_cold if view.tier == "cold" else self._driver.run_read

        def came(done: Ticket[None]) -> None:
            if done.error is not None:
                ticket.fail(done.error)
                return
            self.index_came(topic, view.first_seq)
            ticket.resolve(FetchedRecords(EMPTY_RUN, cold_segments=int(asked)))

        carried_out(run, view.load_index).then(came, ticket.abandon)

    def index_came(self, topic: TopicLog, first_seq: int) -> None:
        block = topic.sealed.by_first_seq(first_seq)
        if block is not None and block.view.tier == "cold":
            with suppress(ColdUnavailable):  # closed again already, for lack of room
                block.keep_index()
        if first_seq in topic.awaiting:
            removal = finish_cold_delete(topic, first_seq)
            self._removed(topic, Effect(OpResult.APPLIED, topic.id, removal=removal))

    def later(self) -> Ticket[None]:
        return carried_out(self._driver.run_read, lambda: None)

    def _is_outdated(self, extent: Extent) -> bool:
        """Absorbed and removed while the read waited: the records lie in segments now."""
        return extent.place is RecordPlace.WAL and not self._store.files.holds(extent.file)

    def _read_of(self, topic: TopicLog, extent: Extent) -> Read | None:
        """None: the place it was located in is no more."""
        if extent.place is RecordPlace.SEALED:
            return SealedRead(extent.view, extent.slots)  # type: ignore[arg-type]
        if extent.place is RecordPlace.WAL:
            return WalRead(extent.file, extent.seqs, extent.offs, extent.lens)
        files = self._store.topics.get(topic.id)
        active = None if files is None else files.active
        if active is None or int(extent.seqs[0]) < active.first_seq:
            return None
        return ActiveRead(active, extent.seqs, extent.offs, extent.lens)

    # --- deletes --------------------------------------------------------------------------------------------------

    def flag_deleted(self, topic: TopicLog, effect: Effect) -> None:
        removal = effect.removal
        if removal is None:
            return
        for first_seq, slots in removal.flips:
            sealed = topic.sealed.by_first_seq(first_seq)
            if sealed is not None:
                self._store.flips.flip(sealed.view, slots)  # type: ignore[arg-type]
        if removal.active_flips:
            self.flag_active(topic, np.concatenate(removal.active_flips))
        self.dead_segments.extend((topic.id, first_seq) for first_seq in removal.dead_segments)

    def note_if_dead(self, topic: TopicLog, first_seq: int) -> None:
        """A segment appeared, by a seal or by a start, in which everything may have died before."""
        sealed = topic.sealed.by_first_seq(first_seq)
        if sealed is None:
            return
        is_counted = sealed.deleted >= 0 or sealed.tier == "hot"  # else its totals are a guess
        if sealed.next_seq <= topic.earliest_seq or (is_counted and not sealed.live):
            self.dead_segments.append((topic.id, first_seq))

    def flag_active(self, topic: TopicLog, seqs: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Records of the active segment. One that was sealed a moment ago is flagged where it lies now."""
        active = self._store.topics[topic.id].active
        if active is None:
            return
        inside = seqs[(seqs >= active.first_seq) & (seqs < active.next_seq)]
        if len(inside):
            self._store.flips.flip(active, inside - active.first_seq)

    def topic_removed(self, topic: TopicLog) -> None:
        self.removed_topics.append(topic)

    def checkpoint(self) -> Ticket[None]:
        return chain(self._run_checkpoint(), lambda _: resolved(None))
