"""Probes: liveness, readiness, and the contract itself (`http-api.md` section 20)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

import topics
from topics.api.app import App
from topics.api.call import Call
from topics.errors import NotReady, ShuttingDown
from topics.wire.endpoints import implemented
from topics.wire.openapi import openapi_document
from topics.wire.replies import health_reply, ready_reply


class Probes:
    """`topic_count` is asked only once recovery is over."""

    def __init__(self, *, uptime_ms: Callable[[], int], topic_count: Callable[[], int]) -> None:
        self._uptime_ms = uptime_ms
        self._topic_count = topic_count
        self.app: App | None = None
        self._openapi: bytes | None = None

    def health(self, call: Call) -> None:
        call.reply(200, health_reply(topics.__version__, uptime_ms=self._uptime_ms()))

    def ready(self, call: Call) -> None:
        assert self.app is not None
        if self.app.progress is not None:
            raise NotReady(self.app.progress)
        if self.app.draining:
            raise ShuttingDown()
        call.reply(200, ready_reply(topics=self._topic_count()))

    def openapi(self, call: Call) -> None:
        assert self.app is not None
        if self._openapi is None:
            document = openapi_document(implemented(self.app.handler_names), version=topics.__version__)
            self._openapi = msgspec.json.encode(document)
        call.reply(200, self._openapi)
