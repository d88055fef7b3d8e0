"""A plain HTTP client in two dialects, and the assertions the contract tests are written in."""

from __future__ import annotations

import json
import threading
from functools import partial
from typing import Any

import httpx

JSON_TYPE = {"content-type": "application/json"}


class Client:
    """`http2` speaks HTTP/2 with prior knowledge. Every thread has a connection of its own: where threads share one,
    httpx gives two requests the same stream now and then."""

    def __init__(self, port: int, *, http2: bool, key: str | None = None) -> None:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        self._open = partial(
            httpx.Client,
            base_url=f"http://127.0.0.1:{port}",
            http1=not http2,
            http2=http2,
            headers=headers,
            timeout=20,
        )
        self._all: list[httpx.Client] = []
        self._mine = threading.local()
        self.version = "HTTP/2" if http2 else "HTTP/1.1"

    @property
    def _http(self) -> httpx.Client:
        mine: httpx.Client | None = getattr(self._mine, "http", None)
        if mine is None:
            mine = self._mine.http = self._open()
            self._all.append(mine)
        return mine

    def close(self) -> None:
        for http in self._all:
            http.close()

    def raw(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = 20,
    ) -> httpx.Response:
        response = self._http.request(method, path, content=content, headers=headers, timeout=timeout)
        assert response.http_version == self.version
        return response

    def send(self, method: str, path: str, body: Any = None, **headers: Any) -> httpx.Response:
        if body is None:
            return self.raw(method, path, headers=headers)
        return self.raw(method, path, content=json.dumps(body).encode(), headers={**JSON_TYPE, **headers})

    # --- verbs that must succeed ----------------------------------------------------------------------------------

    def ok(self, method: str, path: str, body: Any = None, *, status: int = 200, **headers: Any) -> dict[str, Any]:
        response = self.send(method, path, body, **headers)
        assert response.status_code == status, response.text
        assert response.headers["content-type"].startswith("application/json")
        answer: dict[str, Any] = response.json()
        assert "error" not in answer
        assert answer["performance"]["server_total_ms"] >= 0
        return answer

    def put(self, topic: str, *, status: int = 201, **config: Any) -> dict[str, Any]:
        return self.ok("PUT", f"/v0/topics/{topic}", config, status=status)

    def write(self, topic: str, *data: Any, status: int = 200, **fields: Any) -> dict[str, Any]:
        records = [item if isinstance(item, dict) and "data" in item else {"data": item} for item in data]
        return self.ok("POST", f"/v0/topics/{topic}", {"records": records, **fields}, status=status)

    def diff(self, topic: str, **fields: Any) -> dict[str, Any]:
        return self.ok("POST", f"/v0/topics/{topic}/diff", fields)

    def state(self, topic: str) -> dict[str, Any]:
        return self.ok("GET", f"/v0/topics/{topic}")

    # --- and those that must not ----------------------------------------------------------------------------------

    def refused(self, response: httpx.Response, status: int, code: str, detail: Any = None) -> dict[str, Any]:
        """The one error envelope, with exactly this detail (None: without the key)."""
        assert response.status_code == status, response.text
        assert response.headers["content-type"].startswith("application/json")
        assert ("retry-after" in response.headers) == (status in (429, 503))
        if status in (429, 503):
            assert response.headers["retry-after"] == "1"
        body = response.json()
        assert list(body) == ["error"]
        error: dict[str, Any] = body["error"]
        assert error["code"] == code
        assert error["message"]
        assert set(error) <= {"code", "message", "detail"}
        if detail is None:
            assert "detail" not in error
        else:
            assert error["detail"] == detail
        return error
