"""Jobs: file work the engine asks for, as values; the runtime has it done and answers through a ticket.

The engine and the storage layer do not know each other; this protocol is the only thing between them."""

from __future__ import annotations

from typing import Protocol

from topics.core.effects import Effect
from topics.core.slots.extent import Extent
from topics.core.topic import TopicLog
from topics.engine.ticket import Ticket
from topics.model.run import RecordRun


class FetchedRecords:
    """What a fetch brought: the records up to `seq_next`, and how many cold segments had to be asked.

    `run` is None when the records had moved to another file meanwhile: locate them again."""

    __slots__ = ("cold_segments", "run", "seq_next")

    def __init__(self, run: RecordRun | None, *, seq_next: int = 0, cold_segments: int = 0) -> None:
        self.run = run
        self.seq_next = seq_next
        self.cold_segments = cold_segments


class FileRequests(Protocol):
    def fetch(self, topic: TopicLog, extent: Extent) -> Ticket[FetchedRecords]:
        """Read stored records that are not in memory."""

    def flag_deleted(self, topic: TopicLog, effect: Effect) -> None:
        """Set the delete flags of records that lie in segments; issued before the delete call returns."""

    def topic_removed(self, topic: TopicLog) -> None:
        """The topic's directory is no longer needed."""

    def checkpoint_soon(self) -> None:
        """Something waits for a checkpoint."""

    def checkpoint(self) -> Ticket[None]:
        """Checkpoint now: when the ticket resolves, everything published before is in segments, marked and synced."""
