"""Jobs: file work the engine asks for, as values; the runtime has it done and answers through a ticket.

The engine and the storage layer do not know each other; this protocol is the only thing between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from topics.core.effects import Effect
from topics.core.read import Extent
from topics.core.topic import TopicState
from topics.engine.ticket import Ticket
from topics.model.run import RecordRun


class Fetched:
    """What a fetch brought: the records, and how many cold segments had to be asked."""

    __slots__ = ("cold_segments", "run")

    def __init__(self, run: RecordRun, cold_segments: int = 0) -> None:
        self.run = run
        self.cold_segments = cold_segments


class Jobs(Protocol):
    def fetch(self, topic: TopicState, extent: Extent) -> Ticket[Fetched]:
        """Read stored records that are not in memory."""

    def flag_deleted(self, topic: TopicState, effect: Effect) -> None:
        """Set the delete flags of records that lie in segments; issued before the delete call returns."""

    def topic_removed(self, topic: TopicState) -> None:
        """The topic's directory is no longer needed."""

    def checkpoint_soon(self) -> None:
        """Something waits for a checkpoint."""


__all__ = ["Fetched", "Jobs", "Sequence"]
