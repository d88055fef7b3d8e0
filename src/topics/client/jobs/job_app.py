"""JobApp: functions registered for queues, and one worker process that runs them all (`topics worker module:app`).

app = topics.JobApp()

@app.job("mails", concurrency=8, time_limit_s=60)
def send(job: topics.Job) -> None: ...

send.append({"to": "ada"}, delay=60)   # in a web server, say
app.run()                              # or: topics worker module:app
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from topics.client.jobs.handling import After, Before
from topics.client.jobs.worker import Worker, WorkerFields, WorkerOptions
from topics.config import client_settings_from
from topics.errors import ConfigError
from topics.limits import SIGNAL_LOOK_S
from topics.model.config import ConfigFields
from topics.model.results import AppendResult, Job
from topics.model.values import Moment, Span, Unique

if TYPE_CHECKING:
    from topics.client.client import Client, Queue

F = TypeVar("F", bound=Callable[[Job], Any])


class JobFunction(Generic[F]):
    """A function of an app: called like itself, and with a queue that it works on."""

    def __init__(self, app: JobApp, queue: str, handler: F, options: WorkerFields, config: ConfigFields) -> None:
        self.queue_name = queue
        self.handler = handler
        self.options = options
        self._app = app
        self._config = config

    def __repr__(self) -> str:
        return f"JobFunction({self.queue_name!r}, {self.handler!r})"

    def __call__(self, job: Job) -> Any:
        """The function itself, as a test would call it."""
        return self.handler(job)

    @property
    def queue(self) -> Queue:
        return self._app.client.queue(self.queue_name, **self._config)

    def append(
        self,
        data: Any,
        *,
        tag: str | None = None,
        meta: Any = None,
        key: str | None = None,
        delay: Span | None = None,
        deliver_at: Moment | None = None,
        priority: int | None = None,
        unique: str | Unique | None = None,
    ) -> AppendResult:
        """A job for this function, as `Queue.append` makes one."""
        return self.queue.append(
            data,
            tag=tag,
            meta=meta,
            key=key,
            delay=delay,
            deliver_at=deliver_at,
            priority=priority,
            unique=unique,
        )


class JobApp:
    """Functions for queues of one server. The address comes from the environment (TOPICS_URL, TOPICS_API_KEY) where it
    is not given. No connection is made before the first call."""

    def __init__(self, url: str | None = None, api_key: str | None = None) -> None:
        settings = client_settings_from(os.environ).settings
        self.url = url or settings.url
        self.api_key = api_key or settings.api_key
        self.functions: list[JobFunction[Any]] = []
        self._before: Before | None = None
        self._after: After | None = None
        self._client: Client | None = None
        self._stop = threading.Event()

    @property
    def client(self) -> Client:
        from topics.client.client import connect

        if self._client is None:
            self._client = connect(self.url, self.api_key)
        return self._client

    def job(
        self, queue: str, *, config: ConfigFields | None = None, **options: Unpack[WorkerFields]
    ) -> Callable[[F], JobFunction[F]]:
        """`@app.job("mails", concurrency=8)` registers a function for a queue. The options are those of
        `WorkerOptions`; `config` is that of a queue which does not exist yet."""
        WorkerOptions(**options)  # what is wrong is said where it stands

        def register(handler: F) -> JobFunction[F]:
            if any(function.queue_name == queue for function in self.functions):
                raise ConfigError(f"queue {queue!r} has a function already; one queue is for one kind of job")
            made = JobFunction(self, queue, handler, options, config or {})
            self.functions.append(made)
            return made

        return register

    def before(self, hook: Before) -> Before:
        """`@app.before`: called with each job before its function, for those that have no hook of their own."""
        self._before = hook
        return hook

    def after(self, hook: After) -> After:
        """`@app.after`: called with each job and what its function raised, or None."""
        self._after = hook
        return hook

    # --- working --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Ends `run`; running functions finish. Good from any thread and from a signal handler."""
        self._stop.set()

    def run(self, queues: Iterable[str] = (), *, signals: bool = True, **overrides: Unpack[WorkerFields]) -> None:
        """Work on all queues, or on some, until stopped; `overrides` are options that beat those of the functions."""
        workers = self.workers(queues, **overrides)
        before = self._catch_signals() if signals else {}
        errors: list[BaseException] = []
        threads = [threading.Thread(target=self._work, args=(worker, errors), daemon=True) for worker in workers]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads) and not self._stop.wait(SIGNAL_LOOK_S):
                pass
            for worker in workers:
                worker.stop()
            for thread in threads:
                thread.join()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._stop.clear()
        if errors:
            raise errors[0]

    def workers(self, queues: Iterable[str] = (), **overrides: Unpack[WorkerFields]) -> list[Worker]:
        """A worker for each function, or for those of some queues."""
        wanted, known = list(queues), {function.queue_name: function for function in self.functions}
        if not known:
            raise ConfigError("the app has no functions; @app.job(QUEUE) registers one")
        if unknown := [name for name in wanted if name not in known]:
            raise ConfigError(f"no function is registered for queue {unknown[0]!r}, but for {', '.join(sorted(known))}")
        return [self._worker(known[name], overrides) for name in wanted or known]

    def _worker(self, function: JobFunction[Any], overrides: WorkerFields) -> Worker:
        options: WorkerFields = {"before": self._before, "after": self._after}
        options.update(function.options)
        options.update(overrides)
        return Worker(function.queue._verbs, function.handler, WorkerOptions(**options))

    def _work(self, worker: Worker, errors: list[BaseException]) -> None:
        try:
            worker.run(signals=False)
        except BaseException as error:
            errors.append(error)
            self.stop()  # what one worker cannot mend the others cannot either

    def _catch_signals(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}

        def on_signal(number: int, frame: FrameType | None) -> None:
            self.stop()

        return {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
