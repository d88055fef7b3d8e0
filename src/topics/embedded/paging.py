"""Paging: a cursor moved through a log, page by page; and the gaps met on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from topics.errors import DataLoss
from topics.model.results import ReadResult


class Gap(msgspec.Struct, frozen=True):
    """Seqs that were lost without a request, first and last included, and why."""

    topic: str
    gap_from: int
    gap_to: int
    reason: str

    def as_error(self) -> DataLoss:
        return DataLoss(topic=self.topic, gap_from=self.gap_from, gap_to=self.gap_to, reason=self.reason)


def read_pages(page_after: Callable[[int], ReadResult], after: int) -> Iterator[ReadResult]:
    """Pages up to the head that the first one saw: a log that grows meanwhile does not make this endless."""
    page = page_after(after)
    head = page.head_seq
    yield page
    while not page.caught_up and page.next_from_seq < head:
        page = page_after(page.next_from_seq)
        yield page
