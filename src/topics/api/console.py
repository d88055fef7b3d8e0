"""Console: the files of the web page, read once (`topics.console`)."""

from __future__ import annotations

from importlib import resources

from topics.api.call import Call
from topics.errors import NotFound
from topics.net.messages import Response

KINDS = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
}
HEADERS = (
    (b"cache-control", b"no-cache"),
    (b"content-security-policy", b"default-src 'self'"),
    (b"x-content-type-options", b"nosniff"),
)


class Console:
    def __init__(self) -> None:
        self._files = {
            entry.name: entry.read_bytes()
            for entry in resources.files("topics.console").iterdir()
            if "." + entry.name.rpartition(".")[2] in KINDS
        }

    def console(self, call: Call) -> None:
        self._serve(call, "index.html")

    def console_file(self, call: Call) -> None:
        self._serve(call, call.name)

    def _serve(self, call: Call, name: str) -> None:
        body = self._files.get(name)
        if body is None:
            raise NotFound
        call.respond(Response(200, body, KINDS["." + name.rpartition(".")[2]], HEADERS))
