"""Log: where topics are read from, whatever lies behind it: a data directory (`path`) or a server (`url`).

An `Address` is what travels to executors; `open_log` makes the thing itself there. A log has no state that matters:
asked twice, it looks twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from topics.spark.option_values import TopicChoice
from topics.spark.planning.cut import TopicCut
from topics.spark.secret import Secret, without_secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAddress:
    """Where a log is: exactly one of `path` and `url` is set."""

    path: str | None = None
    cold_path: str | None = None
    url: str | None = None
    api_key: Secret | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        return without_secrets(self.path or self.url or "?")


class Log(Protocol):
    def close(self) -> None:
        """Give back what is open."""

    def cuts(self, topics: TopicChoice, *, now_ms: int) -> dict[str, TopicCut]:
        """The wanted topics that exist, each at one moment, by name."""

    def names(self) -> list[str]:
        """Every topic there is, sorted."""

    def seq_at(self, cut: TopicCut, ts_ms: int) -> int:
        """First seq of the cut whose record is not older than `ts_ms`; the end of the cut if all are."""

    def bytes_end(self, cut: TopicCut, lo: int, bytes_max: int) -> int:
        """The end of the longest run of seqs from `lo` on that holds at most so many bytes, but at least one record."""

    def first_live(self, cut: TopicCut, lo: int) -> int:
        """Smallest live seq at or above `lo`; the end of the cut if there is none."""


def open_log(address: LogAddress) -> Log:
    """The log at an address."""
    if address.url is not None:
        from topics.spark.logs.server_log import ServerLog

        return ServerLog(address)
    from topics.spark.logs.directory import DirectoryLog

    return DirectoryLog(address)
