"""Remote: the few HTTP calls that the pipeline makes to a server. One connection per object, kept alive.

`429` and `503` are tried again after the server's `Retry-After`, a broken connection after a growing pause; everything
else is the server's own error with its code and message. A body that ends early is a broken connection. The key goes
into a header and nowhere else. Used on the driver (manifests, trims) and on executors (frames, writes).
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from topics.errors import ConfigError, TopicsError
from topics.spark.logs.log import LogAddress
from topics.wire.outgoing.replies import error_from_wire

TIMEOUT_S: Final = 60.0
RETRIES: Final = 30
PLANNING_RETRIES: Final = 6
"""About three seconds: enough for a restart, and a wrong address is told soon."""
_PAUSE_MAX_S: Final = 1.0
_RETRIED: Final = frozenset({429, 503})


class ServerGone(TopicsError):
    """The server cannot be reached, or went away half-way."""

    code = "unreachable"
    status = 503
    retryable = True


@dataclass(frozen=True, slots=True)
class RemoteAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Remote:
    """Calls to the server of an address."""

    def __init__(
        self,
        address: LogAddress,
        *,
        retries: int = RETRIES,
        timeout_s: float = TIMEOUT_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        assert address.url is not None
        self._address = address
        self._retries = retries
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._connection: http.client.HTTPConnection | None = None

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> RemoteAnswer:
        asked = f"{path}?{urlencode(query)}" if query else path
        return self._call("GET", asked, None, "application/json")

    def post(self, path: str, body: bytes) -> RemoteAnswer:
        """Safe to repeat only if the body carries an idempotency key, or repeating does no harm."""
        return self._call("POST", path, body, "application/json")

    def put(self, path: str, body: bytes) -> RemoteAnswer:
        return self._call("PUT", path, body, "application/json")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _call(self, method: str, path: str, body: bytes | None, content_type: str) -> RemoteAnswer:
        for attempt in range(self._retries + 1):
            try:
                answer = self._try(method, path, body, content_type)
            except (http.client.HTTPException, OSError) as error:
                self.close()
                if attempt == self._retries:
                    raise self._gone(error) from None
                self._sleep(min(0.05 * 2**attempt, _PAUSE_MAX_S))
                continue
            if answer.status < 300:
                return answer
            if answer.status not in _RETRIED or attempt == self._retries:
                raise _error(answer)
            self._sleep(_retry_after_s(answer))
        raise AssertionError("the last attempt returns or raises")

    def _gone(self, error: Exception) -> ServerGone:
        return ServerGone(f"{self._address.shown} does not answer ({_shown(error)}); is a server running there?")

    def _try(self, method: str, path: str, body: bytes | None, content_type: str) -> RemoteAnswer:
        connection = self._connection or self._connect()
        self._connection = connection
        headers: dict[str, str | bytes] = {"Accept-Encoding": "identity"}
        if body is not None:
            headers["Content-Type"] = content_type
        if self._address.api_key is not None:
            headers["Authorization"] = f"Bearer {self._address.api_key.reveal()}".encode()
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        content = response.read()
        if response.will_close:
            self.close()
        named = {name.lower(): value for name, value in response.getheaders()}
        return RemoteAnswer(response.status, named, content)

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self._address.url or "")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "localhost", parts.port, timeout=self._timeout_s)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def key_refused(address: LogAddress, error: TopicsError, *, scope: str) -> ConfigError:
    """What to do about a key that a server does not take."""
    return ConfigError(
        f"the server at {address.shown} refuses the key ({error.code}: {error.message}); "
        f"give one with the {scope} scope as apiKey, apiKeyFile or TOPICS_API_KEY"
    )


def topic_path(topic: str, *rest: str) -> str:
    """`/v0/topics/<topic>/...`."""
    return "/".join(("/v0/topics", quote(topic, safe=":"), *rest))


def _retry_after_s(answer: RemoteAnswer) -> float:
    try:
        return min(max(float(answer.headers.get("retry-after", "1")), 0.0), 60.0)
    except ValueError:
        return 1.0


def _error(answer: RemoteAnswer) -> TopicsError:
    try:
        told = answer.json()["error"]
        return error_from_wire(
            code=told["code"], status=answer.status, message=told["message"], detail=told.get("detail")
        )
    except (ValueError, KeyError, TypeError):
        return TopicsError(f"the server answered {answer.status} without saying why")


def _shown(error: Exception) -> str:
    return str(error) or type(error).__name__
