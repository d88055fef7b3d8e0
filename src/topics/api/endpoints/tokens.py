"""Stream tokens: made for a key, shown by web pages (`docs/spec/readers.md#sec-9`)."""

from __future__ import annotations

from collections.abc import Callable

from topics.api.app import RequestCall
from topics.model.names import check_topic_name
from topics.wire.access.keys import ALL_SCOPES, SCOPE_NAMES
from topics.wire.access.stream_tokens import StreamToken, StreamTokens
from topics.wire.incoming.requests import decode_token

EVERY_TOPIC = "*"


class TokenEndpoint:
    def __init__(self, tokens: StreamTokens, *, wall_ms: Callable[[], int]) -> None:
        self._tokens = tokens
        self._wall_ms = wall_ms

    def create_token(self, call: RequestCall) -> None:
        request = call.take(decode_token)
        for name in request.topics or ():
            if name != EVERY_TOPIC:
                check_topic_name(name.removesuffix("*"))
        scopes = ALL_SCOPES if request.scopes is None else sum({SCOPE_NAMES[scope] for scope in request.scopes})
        token = self._tokens.issue(call.key, topics=tuple(request.topics or ()), scopes=scopes, ttl_ms=request.ttl_ms)
        call.answer(StreamToken(token, self._wall_ms() + request.ttl_ms))
