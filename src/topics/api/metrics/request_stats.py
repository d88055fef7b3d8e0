"""RequestStats: every answer, counted by endpoint and status, and how long it took.

Counted where requests end: `RequestCall`, fast appends, and refusals by the head alone. A stream is counted only if it
is refused: it has no end that tells anything."""

from __future__ import annotations

from collections import defaultdict

from topics.api.metrics.exposition import Family, add_histogram, label
from topics.model.latency import LATENCY_BOUNDS_S, LatencyHistogram

NO_HANDLER = "none"


class RequestStats:
    def __init__(self) -> None:
        self.answers: defaultdict[tuple[str, int], int] = defaultdict(int)
        """By handler and status."""
        self.durations: defaultdict[str, LatencyHistogram] = defaultdict(LatencyHistogram)

    def answered(self, handler: str, status: int, seconds: float, times: int = 1) -> None:
        self.answers[handler, status] += times
        self.durations[handler].observe(seconds, times)

    def refused(self, handler: str | None, status: int) -> None:
        """By the head alone: there was nothing to take time."""
        self.answers[handler or NO_HANDLER, status] += 1

    def families(self) -> list[Family]:
        answers = Family("topics_http_requests_total", "counter", "answers by endpoint and status")
        for (handler, status), count in sorted(self.answers.items()):
            answers.add(label(handler=handler, code=str(status)), count)
        durations = Family(
            "topics_http_request_duration_seconds", "histogram", "from the complete head to the answer, waits included"
        )
        for handler, latency in sorted(self.durations.items()):
            add_histogram(
                durations,
                f'handler="{handler}"',
                bounds=LATENCY_BOUNDS_S,
                counts=latency.counts,
                total=latency.sum_s,
            )
        return [answers, durations]
