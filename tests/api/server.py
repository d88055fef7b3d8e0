"""A whole server in this process, on a loopback port, for tests that speak to it as a client would."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from topics.api.build import ServerApp
from topics.clock import SystemClock, SystemHost
from topics.config import Settings
from topics.runtime.drivers.aio import AioDriver, future_of
from topics.runtime.kernel import Kernel, recover
from topics.server.connections.hub import TransportSettings
from topics.server.server import Server
from topics.storage.fs import Fs
from topics.storage.osfs import OsFs, RetryingFs
from topics.wire.access.keys import parse_keys


class PushedClock:
    """The system's clock; a test may let time pass at once."""

    def __init__(self) -> None:
        self._system = SystemClock()
        self.ahead_ms = 0

    def wall_ms(self) -> int:
        return self._system.wall_ms() + self.ahead_ms

    def monotonic(self) -> float:
        return self._system.monotonic() + self.ahead_ms / 1000


class LiveServer:
    """Start with `with LiveServer(tmp_path, max_topics=2) as server:`; keywords are settings."""

    def __init__(self, data_dir: Path, *, fs: Fs | None = None, **settings: Any) -> None:
        """`fs`: a disk whose calls fail where a test says so."""
        self.clock = PushedClock()
        self._fs = fs or OsFs()
        self.settings = Settings.from_kwargs(data_dir=str(data_dir), wal_shards=2, wal_file_bytes=1 << 20, **settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="live-server", daemon=True)
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def run(self, step: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(step, self._loop).result(30)

    def on_loop(self, step: Callable[[], Any]) -> Any:
        """Call `step` as the owner of the engine."""

        async def call() -> Any:
            return step()

        return self.run(call())

    def checkpoint(self) -> None:
        """Have what lies only in the log moved into segments, and wait until it is."""

        async def run() -> None:
            await future_of(self.kernel.checkpointer.run(), self._loop)

        self.run(run())

    async def _start(self) -> None:
        recovered = recover(RetryingFs(self._fs), settings=self.settings, clock=self.clock, host=SystemHost())
        self.driver = AioDriver(self._loop, cold_threads=1)
        self.kernel = Kernel(recovered, settings=self.settings, driver=self.driver)
        self.driver.attach(flush=self.kernel.flush, tick=self.kernel.tick)
        keys = parse_keys(self.settings.api_keys)
        self.app = ServerApp(self.settings, keys=keys, clock=self.clock, host=SystemHost())
        self.app.attach(self.kernel)
        transport = TransportSettings(
            max_body_bytes=self.settings.max_body_bytes, gzip_min_bytes=self.settings.gzip_min_bytes
        )
        self.server = Server(self.app.app, transport, clock=SystemClock())
        listener = socket.socket()
        listener.setblocking(False)
        listener.bind(("127.0.0.1", 0))
        listener.listen(512)
        self.port = listener.getsockname()[1]
        await self.server.start([listener])

    async def _stop(self) -> None:
        await self.server.stop()
        await future_of(self.kernel.begin_close(), self._loop)
        await self._loop.run_in_executor(None, self.kernel.finish_close)
        self.driver.close()
