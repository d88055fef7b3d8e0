"""Endpoints that need no topic: liveness, readiness (`docs/spec/http-api.md#sec-20`), what a key may do, the contract
itself, and the files of the web console, which are read once (`topics.console`)."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources

import msgspec

import topics
from topics.api.app import App, RequestCall
from topics.errors import NotFound, NotReady, ReadOnlyCause, ShuttingDown
from topics.model.results import AccessResult
from topics.net.messages import Response
from topics.runtime.kernel import Kernel
from topics.wire.access.keys import SCOPE_NAMES
from topics.wire.endpoints import ENDPOINTS
from topics.wire.openapi import openapi_document
from topics.wire.outgoing.replies import health_reply, ready_reply

KINDS = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
# The page runs its own files and nothing else, talks to its own server only, is framed by nobody, and cannot make
# markup of text even by mistake (trusted types).
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = (
    (b"cache-control", b"no-cache"),
    (b"content-security-policy", POLICY),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)

ROOT_TEXT = b"topics: the web console is at /console, the contract at /openapi.json, the API under /v0\n"


class Console:
    def __init__(self) -> None:
        self._files = {
            entry.name: entry.read_bytes()
            for entry in resources.files("topics.console").iterdir()
            if "." + entry.name.rpartition(".")[2] in KINDS
        }

    def root(self, call: RequestCall) -> None:
        """Somebody who typed the address of a server into a browser, or into curl."""
        call.respond(Response(303, ROOT_TEXT, b"text/plain; charset=utf-8", ((b"location", b"/console"),)))

    def console(self, call: RequestCall) -> None:
        self._serve(call, "index.html")

    def console_file(self, call: RequestCall) -> None:
        self._serve(call, call.name)

    def _serve(self, call: RequestCall, name: str) -> None:
        body = self._files.get(name)
        if body is None:
            raise NotFound
        call.respond(Response(200, body, KINDS["." + name.rpartition(".")[2]], HEADERS))


_REMEDY: dict[ReadOnlyCause, str] = {
    "no_space": "free some space, writes resume by themselves",
    "write": "look at the disk, then restart",
    "sync": "look at the disk, then restart",
    "rotate": "a new log file could not be made, see the server's log; it is tried again, writes resume by themselves",
    "removed": "its files were deleted, moved or replaced under the server; put them back, then restart",
    "writer_dead": "restart, and report the traceback in the log",
}


def refusals_of(kernel: Kernel) -> list[str]:
    """Why writes are refused now, a sentence for each log shard that does; while there are any, it is not ready."""
    return [
        f"log shard {kernel.store.groups[index].key or index} is read-only ({cause}): {_REMEDY[cause]}"
        for index, cause in kernel.commit.read_only_causes().items()
    ]


def problems_of(kernel: Kernel) -> list[str]:
    """What an operator should know now, a sentence each; what it means for clients is in the errors they get."""
    found = refusals_of(kernel)
    if not found:  # else what follows from them is no news
        troubles = (kernel.checkpointer.trouble, kernel.snapshotter.trouble)
        found += [trouble.sentence for trouble in troubles if trouble.sentence is not None]
    if kernel.clock_watch.sentence is not None:
        found.append(kernel.clock_watch.sentence)
    cold = kernel.tiers.cold
    if cold is not None and not cold.answers:
        found.append("the cold store does not answer: only reads of cold history fail, relocation resumes by itself")
    return found


class Probes:
    def __init__(self, app: App, *, uptime_ms: Callable[[], int]) -> None:
        self._app = app
        self._uptime_ms = uptime_ms
        self.kernel: Kernel | None = None  # until recovery is over
        self._openapi: bytes | None = None

    def health(self, call: RequestCall) -> None:
        problems = [] if self.kernel is None else problems_of(self.kernel)
        call.reply(200, health_reply(topics.__version__, uptime_ms=self._uptime_ms(), problems=problems))

    def ready(self, call: RequestCall) -> None:
        if self._app.progress is not None:
            raise NotReady(self._app.progress)
        if self._app.draining:
            raise ShuttingDown()
        assert self.kernel is not None
        refusals = refusals_of(self.kernel)
        if refusals:
            raise NotReady.refusing_writes(refusals)
        call.reply(200, ready_reply(topics=len(self.kernel.engine.state.topics)))

    def access(self, call: RequestCall) -> None:
        key = call.key
        scopes = [name for name, scope in SCOPE_NAMES.items() if key is None or key.allows(scope)]
        prefixes = [] if key is None else list(key.prefixes)
        call.answer(AccessResult(auth=key is not None, scopes=scopes, prefixes=prefixes))

    def openapi(self, call: RequestCall) -> None:
        if self._openapi is None:
            self._openapi = msgspec.json.encode(openapi_document(ENDPOINTS, version=topics.__version__))
        call.reply(200, self._openapi)
