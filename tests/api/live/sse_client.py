"""A client of server-sent events over a real connection, in either HTTP version."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import httpx
from tests.engine.delivery.rig import Frame, parse_frames

TIMEOUT_S = 10.0


class SseClient:
    """`with SseClient(port, path) as stream: stream.next("record")`. Reads only when asked to."""

    def __init__(self, port: int, path: str, *, http2: bool = False, headers: dict[str, str] | None = None) -> None:
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{port}", http1=not http2, http2=http2, timeout=TIMEOUT_S)
        self._request = self._http.build_request("GET", path, headers=headers)
        self.received = b""
        self._parsed_bytes = 0
        self._frames: deque[Frame] = deque()

    def __enter__(self) -> Self:
        self.response = self._http.send(self._request, stream=True)
        self._bytes: Iterator[bytes] = self.response.iter_raw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.response.close()
        self._http.close()

    def until(self, mark: bytes) -> bytes:
        """Read until the mark was received."""
        while mark not in self.received:
            self.received += next(self._bytes)
        return self.received

    def _parse(self) -> None:
        """Take up the frames that have become whole."""
        end = self.received.rfind(b"\n\n", self._parsed_bytes) + 2
        if end > 1:
            self._frames.extend(parse_frames(self.received[self._parsed_bytes : end]))
            self._parsed_bytes = end

    def next(self, event: str | None = None) -> Frame:
        """The next frame, or the next one of that kind."""
        while True:
            self._parse()
            while self._frames:
                frame = self._frames.popleft()
                if event is None or frame.event == event:
                    return frame
            self.received += next(self._bytes)

    def rest(self) -> list[Frame]:
        """All frames up to the server's end of the stream."""
        self.received += b"".join(self._bytes)
        self._parse()
        frames = list(self._frames)
        self._frames.clear()
        return frames

    def error(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.response.read())
        return body["error"]  # type: ignore[no-any-return]
