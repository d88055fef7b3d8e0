"""Transport of the blocking client: sockets, a small pool of kept-alive connections, tries and retries.

Always holds: every socket has a timeout; a connection is in the pool or in one caller's hands; one whose exchange did
not end well is closed. Good for any thread."""

from __future__ import annotations

import random
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

from topics.client.transport.address import Address
from topics.client.transport.forks import tell_of_forks
from topics.client.transport.http_messages import (
    ClientAnswer,
    ClientCall,
    ResponseReader,
    error_of,
    render_request,
    result_of,
)
from topics.client.transport.retry import Attempts, RetryPolicy
from topics.errors import ConfigError, TopicsError, Unreachable

T = TypeVar("T")

READ_BYTES = 256 * 1024
IDLE_MAX = 16  # kept-alive connections that wait for the next call
IDLE_S_MAX = 50.0  # the server may close an idle connection after 60 s


class ClientConnection:
    """One connection."""

    def __init__(self, address: Address, *, timeout_s: float, tls: ssl.SSLContext | None) -> None:
        self._timeout_s = timeout_s
        self._reader = ResponseReader()
        self._where = address.url
        self.socket = _connected(address, timeout_s=timeout_s, tls=tls)
        self.idle_since = 0.0
        self._half_sent = False
        self._poll = select.poll()
        self._poll.register(self.socket, select.POLLIN)

    def close(self) -> None:
        self.socket.close()

    def wake(self) -> None:
        """End a wait on another thread; the socket stays that thread's to close."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def is_fresh(self, now: float) -> bool:
        """Nothing may be readable on an idle connection: if something is, the server has closed it."""
        if now - self.idle_since > IDLE_S_MAX:
            return False
        return not self._poll.poll(0)

    # --- one exchange ---------------------------------------------------------------------------------------------

    def send(self, request: bytes) -> None:
        try:
            self.socket.sendall(request)
        except OSError as error:
            raise Unreachable(f"{self._where} did not take the call: {_why(error)}", sent=True) from None

    def receive(self, *, timeout_s: float | None = None) -> None:
        """Wait for some bytes and let the reader have them."""
        wanted_s = self._timeout_s if timeout_s is None else timeout_s
        if wanted_s != self.socket.gettimeout():
            self.socket.settimeout(wanted_s)
        try:
            data = self.socket.recv(READ_BYTES)
        except OSError as error:
            raise Unreachable(f"no answer from {self._where}: {_why(error)}", sent=True) from None
        if not data:
            raise Unreachable(f"{self._where} closed the connection before its answer was whole", sent=True)
        self._reader.feed(data)

    def ask(self, request: bytes, *, wait_ms: int) -> ClientAnswer:
        """A server may refuse a call before it has read all of it, and stop listening: what it said is read still."""
        try:
            self.send(request)
        except Unreachable as failure:
            self._half_sent = True
            try:
                return self.answer()
            except Unreachable:
                raise failure from None
        return self.answer(wait_ms=wait_ms)

    def answer(self, *, wait_ms: int = 0) -> ClientAnswer:
        """The whole answer. The time between two pieces is bounded, and the time for all of them."""
        timeout_s = self._timeout_s + wait_ms / 1000
        deadline = time.monotonic() + timeout_s
        while not self._reader.is_complete:
            self.receive(timeout_s=timeout_s)
            if not self._reader.is_complete and time.monotonic() > deadline:
                raise Unreachable(f"the answer of {self._where} took more than {timeout_s:g} s", sent=True)
        return self._reader.answer()

    @property
    def keeps_alive(self) -> bool:
        return self._reader.keeps_alive and not self._half_sent

    # --- streams --------------------------------------------------------------------------------------------------

    def head(self) -> None:
        """Wait for the head of a stream; raises what the server says instead of opening it."""
        while not self._reader.has_head:
            self.receive()
        if self._reader.status != 200:
            raise error_of(self.answer())

    def pieces(self, *, timeout_s: float) -> bytes | None:
        """What comes next on a stream; None at its proper end."""
        while not (data := self._reader.take()):
            if self._reader.is_complete:
                return None
            self.receive(timeout_s=timeout_s)
        return data


def _connected(address: Address, *, timeout_s: float, tls: ssl.SSLContext | None) -> socket.socket:
    plain: socket.socket | None = None
    try:
        plain = socket.create_connection((address.host, address.port), timeout=timeout_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return plain if tls is None else tls.wrap_socket(plain, server_hostname=address.host)
    except (OSError, UnicodeError, OverflowError) as error:
        if plain is not None:
            plain.close()
        raise refusal(address, error) from None


def refusal(address: Address, error: Exception) -> TopicsError:
    """Why there is no connection. What waiting does not mend is a wrong setting."""
    if isinstance(error, UnicodeError | OverflowError):
        return ConfigError(f"{address.url} is no address: {error}")
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConfigError(f"the certificate of {address.url} is not trusted: {error.verify_message}")
    if isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME:
        return ConfigError(f"no host has the name {address.host!r}")
    assert isinstance(error, OSError)
    return Unreachable(f"cannot connect to {address.url}: {_why(error)}", sent=False)


def _why(error: OSError) -> str:
    return "timed out" if isinstance(error, TimeoutError) else (error.strerror or str(error) or type(error).__name__)


class Transport:
    def __init__(
        self, address: Address, *, timeout_s: float, policy: RetryPolicy, tls: ssl.SSLContext | None = None
    ) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self.policy = policy
        self.closed = threading.Event()
        self._tls = (tls or ssl.create_default_context()) if address.is_tls else None
        self._fixed = address.headers()
        self._idle: list[ClientConnection] = []
        self._streams: set[ClientConnection] = set()
        self.before_close: dict[object, Callable[[], None]] = {}
        """What still has something to send, and how it is brought to an end."""
        self._lock = threading.Lock()
        tell_of_forks(self)

    def forked(self) -> None:
        """The connections are the parent's. Closing our copies does not end them."""
        self._lock = threading.Lock()
        idle, self._idle = self._idle, []
        self._streams = set()
        for link in idle:
            link.close()

    def run(self, call: ClientCall[T]) -> T:
        """The result of a call, tried again where that is safe and helps."""
        attempts: Attempts | None = None
        while True:
            try:
                return self.once(call)
            except TopicsError as error:
                now = time.monotonic()
                attempts = attempts or Attempts(self.policy, now=now)
                pause_s = attempts.pause_s(error, repeatable=call.repeatable, now=now, chance=random.random)
                if pause_s is None or self.closed.wait(pause_s):
                    raise

    def once(self, call: ClientCall[T]) -> T:
        return result_of(call, self._exchange(call))

    def _exchange(self, call: ClientCall[Any]) -> ClientAnswer:
        link = self._take()
        try:
            answer = link.ask(render_request(call, self._fixed, base=self.address.base), wait_ms=call.wait_ms)
        except BaseException:
            link.close()
            raise
        self._give_back(link)
        return answer

    def open_stream(self, call: ClientCall[Any], *, extra: bytes = b"") -> ClientConnection:
        """A connection of its own, its stream opened; given back by `end_stream`."""
        link = self._new_link()
        try:
            link.send(
                render_request(call, self._fixed, base=self.address.base, accept=b"text/event-stream", extra=extra)
            )
            link.head()
        except BaseException:
            link.close()
            raise
        with self._lock:
            self._streams.add(link)
        return link

    def end_stream(self, link: ClientConnection) -> None:
        with self._lock:
            self._streams.discard(link)
        link.close()

    # --- the pool -------------------------------------------------------------------------------------------------

    def _take(self) -> ClientConnection:
        now = time.monotonic()
        while True:
            with self._lock:
                link = self._idle.pop() if self._idle else None
            if link is None:
                return self._new_link()
            if link.is_fresh(now):
                return link
            link.close()

    def _new_link(self) -> ClientConnection:
        if self.closed.is_set():
            raise TopicsError("the client is closed")
        return ClientConnection(self.address, timeout_s=self.timeout_s, tls=self._tls)

    def _give_back(self, link: ClientConnection) -> None:
        link.idle_since = time.monotonic()
        with self._lock:
            if link.keeps_alive and len(self._idle) < IDLE_MAX and not self.closed.is_set():
                self._idle.append(link)
                return
        link.close()

    def close(self) -> None:
        """Producers send what they have; then idle connections and streams end, and those in use with their call."""
        with ExitStack() as ends:  # all of them, also when one raises
            ends.callback(self._close_links)
            for finish in list(self.before_close.values()):
                ends.callback(finish)

    def _close_links(self) -> None:
        self.closed.set()
        with self._lock:
            idle, self._idle = self._idle, []
            streams = list(self._streams)
        for link in idle:
            link.close()
        for link in streams:
            link.wake()
