"""The server process: settings in, exit status out; recovery, listening, serving, draining, in that order.

Recovery comes before listening, so whoever can connect finds everything there. Only a recovery that takes longer than
`LISTEN_AFTER_S` is overtaken: then the server listens early and answers 503 until it is done. SIGTERM and SIGINT drain
the server, write a last snapshot and end with status 0; SIGHUP reads the key file again. Called by `topics serve`."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

from topics.api.build import ServerApp
from topics.clock import Clock, Host, SystemClock, SystemHost
from topics.config import Settings, bind_address
from topics.limits import LISTEN_BEFORE_READY_MS
from topics.runtime.drivers.aio import AioDriver, future_of
from topics.runtime.kernel import Kernel, recover
from topics.runtime.recovery.recover import Recovered
from topics.server.allocator import tune_allocator
from topics.server.connections.hub import TransportSettings
from topics.server.key_source import KeySource
from topics.server.listen import (
    bound_address,
    connections_max,
    open_listeners,
    raise_file_limit,
    refuse_open_door,
    write_port_file,
)
from topics.server.server import Server
from topics.server.tls import tls_context
from topics.storage.osfs import OsFs, RetryingFs
from topics.wire.access.auth import PageRules
from topics.wire.access.keys import share_of

log = logging.getLogger("topics.server")

LISTEN_AFTER_S = LISTEN_BEFORE_READY_MS / 1000
SWITCH_S = 0.001
GC_THRESHOLD = (50_000, 50, 1000)
"""Neither recovery nor the hot paths make cycles; the collector need not look often."""


class ServerProcess:
    def __init__(self, settings: Settings, *, clock: Clock | None = None, host: Host | None = None) -> None:
        """Checks everything that can be wrong before the disk is touched."""
        self._settings = settings
        self._clock = clock or SystemClock()
        self._host = host or SystemHost()
        self._key_source = KeySource(settings, now_ms=self._clock.wall_ms)
        self._keys = self._key_source.ring
        if settings.otel:
            from topics.server.span_export import export_spans

            export_spans()
        self._address = bind_address(settings)
        self._tls = tls_context(cert_file=settings.tls_cert, key_file=settings.tls_key)
        PageRules.from_settings(settings, is_guarded=self._keys is not None)
        refuse_open_door(self._address, has_keys=self._keys is not None, allow_insecure=settings.allow_insecure_no_auth)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        tune_allocator()
        self._file_limit = raise_file_limit()  # before recovery, which opens files too
        gc.set_threshold(*GC_THRESHOLD)
        app = ServerApp(self._settings, keys=self._keys, clock=self._clock, host=self._host)
        if self._key_source.has_file:
            loop.add_signal_handler(signal.SIGHUP, self._key_source.reload, app.keys_ended)
        recovering = loop.run_in_executor(ThreadPoolExecutor(1, "topics-recovery"), self._recover, app)
        await asyncio.wait([recovering], timeout=LISTEN_AFTER_S)
        if recovering.done():
            recovering.result()  # a refused start ends the process here, before it listens
        server = await self._listen(app)
        recovered = await recovering
        driver = AioDriver(loop, cold_threads=self._settings.cold_io_threads)
        kernel = Kernel(recovered, settings=self._settings, driver=driver)
        driver.attach(flush=kernel.flush, tick=kernel.tick)
        app.attach(kernel)
        self._tune_interpreter()
        found = len(recovered.state.topics), recovered.replayed_frames
        log.info("ready: %d topics, %d frames replayed, data in %s", *found, os.path.abspath(self._settings.data_dir))
        tell_supervisor(b"READY=1")
        await stop.wait()
        await self._drain(server, kernel, driver)

    def _recover(self, app: ServerApp) -> Recovered:
        return recover(
            RetryingFs(OsFs()),
            settings=self._settings,
            clock=self._clock,
            host=self._host,
            progress=app.report_progress,
        )

    async def _listen(self, app: ServerApp) -> Server:
        settings = self._settings
        listeners = open_listeners(self._address)
        most = connections_max(self._file_limit)
        transport = TransportSettings(
            max_body_bytes=settings.max_body_bytes,
            gzip_min_bytes=settings.gzip_min_bytes,
            connections_max=most,
            connections_each_max=share_of(most, settings.client_share),
        )
        server = Server(app.app, transport, clock=self._clock)
        await server.start(listeners, tls=self._tls)
        address = bound_address(listeners[0])
        if settings.port_file is not None:
            write_port_file(settings.port_file, address)
        if self._keys is None:
            log.warning("authentication is OFF: whoever reaches %s may do everything", address)
        scheme = "http" if self._tls is None else "https"
        log.info("listening on %s, console at %s://%s/console", address, scheme, address)
        return server

    @staticmethod
    def _tune_interpreter() -> None:
        """What is there now stays: the collector need not look at it again. And the loop gets the interpreter back from
        a background thread, or the thread from the loop, within a millisecond of asking for it."""
        sys.setswitchinterval(SWITCH_S)
        gc.collect()
        gc.freeze()

    async def _drain(self, server: Server, kernel: Kernel, driver: AioDriver) -> None:
        log.info("stopping")
        tell_supervisor(b"STOPPING=1")
        await server.stop()
        await future_of(kernel.begin_close(), asyncio.get_running_loop())
        await asyncio.get_running_loop().run_in_executor(None, kernel.finish_close)
        driver.close()
        log.info("stopped")


def tell_supervisor(state: bytes) -> None:
    """systemd's readiness protocol: one datagram, if somebody asked for it."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
        try:
            door.sendto(state, "\0" + address[1:] if address.startswith("@") else address)
        except OSError as error:
            log.warning("the supervisor could not be told %s: %s", state.decode(), error)
