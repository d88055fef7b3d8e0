"""The named cursor of a streaming query: its progress, where all lag is seen (`docs/spec/readers.md#sec-1-6`).

A cursor of that name in every topic of the query stands where the query has committed: Spark asks for the next batch
once the last one is in its commit log, and says where it starts. So the cursor may be behind, and is never ahead. What
a run of the query finds ahead of it (its checkpoint was removed, or is an older one) is set back once, at its start.
Used on the driver by `StreamPlanner`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec

from topics.errors import CursorForeign, TopicNotFound
from topics.spark.logs.bulk_client import Remote, topic_path
from topics.spark.planning.cut import log
from topics.spark.planning.offsets import NextSeq, Points
from topics.wire.outgoing.replies import error_from_wire

_COMMITS_MAX: Final = 1000


class QueryCursor:
    """Commits of one run of a query."""

    def __init__(self, remote: Remote, name: str, *, query: str) -> None:
        self._remote = remote
        self._name = name
        self._meta = {"kind": "spark", "query": query}
        self._committed: Points = {}
        self._met: set[str] = set()
        """Topics whose cursor this run has seen."""

    def close(self) -> None:
        self._remote.close()

    def commit(self, points: Points) -> None:
        """The query has committed everything before these points."""
        moved = [(name, point) for name, point in sorted(points.items()) if self._committed.get(name) != point]
        for at in range(0, len(moved), _COMMITS_MAX):
            self._send(moved[at : at + _COMMITS_MAX])
        self._committed = dict(points)

    def _send(self, moved: list[tuple[str, NextSeq]]) -> None:
        commits = [
            {"topic": topic, "cursor": self._name, "position": point.position.given, "meta": self._meta}
            for topic, point in moved
        ]
        answer = self._remote.post("/v0/cursors", msgspec.json.encode({"commits": commits})).json()
        for (topic, point), told in zip(moved, answer["results"], strict=True):
            if "error" in told:
                self._refused(topic, told["error"])
            elif told["seq"] > point.position.seq and topic not in self._met:
                self._set_back(topic, point)
            self._met.add(topic)

    def _set_back(self, topic: str, point: NextSeq) -> None:
        path = topic_path(topic, "cursors", quote(self._name, safe=":"))
        self._remote.put(path, msgspec.json.encode({"to": point.position.given, "meta": self._meta}))

    def _refused(self, topic: str, told: Mapping[str, Any]) -> None:
        """A topic that is gone, or another one than it was, is for the stream to announce; all else ends the query."""
        error = error_from_wire(
            code=told["code"], status=CursorForeign.status, message=told["message"], detail=told.get("detail")
        )
        if not isinstance(error, CursorForeign | TopicNotFound):
            raise error
        log.warning("cursor %r of topic %r stays where it is: %s", self._name, topic, error.message)
