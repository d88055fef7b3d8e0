"""Handling: one job, from the call of its function to what became of it (`JobOutcome`). No queue, no thread.

The same code runs in a thread, in a task of an event loop and in a child process. Always holds: whatever a function
raises becomes an outcome; hooks run around every call, and one that raises fails the job as the function would."""

from __future__ import annotations

import asyncio
import inspect
import logging
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from topics import limits
from topics.errors import InvalidRequest
from topics.model.results import Job
from topics.model.values import Span, json_text, span_ms

log = logging.getLogger("topics.worker")

NO_RESULT = msgspec.Raw(b"null")
Handler = Callable[[Job], object]
AsyncHandler = Callable[[Job], Awaitable[object]]
Before = Callable[[Job], object]
After = Callable[[Job, BaseException | None], object]


class GiveUp(Exception):
    """Raised by a function of a worker: trying again is of no use. The job goes to the dead letters at once."""


class RetryLater(Exception):
    """Raised by a function of a worker: the job comes again after `delay`, instead of when its queue would say."""

    def __init__(self, delay: Span, why: str = "") -> None:
        super().__init__(why or f"again in {delay}")
        self.delay_ms = span_ms(delay, "delay")


class TimeLimitPassed(Exception):
    """Raised inside a function that took longer than its worker allows."""


class JobOutcome(msgspec.Struct, frozen=True, tag="outcome"):
    """What became of a job. `error` None: it is done, or it was never begun and goes back (`begun` False)."""

    job: Job
    error: str | None = None
    trace: str = ""
    final: bool = False
    delay_ms: int | None = None
    result: msgspec.Raw = NO_RESULT
    begun: bool = True

    @property
    def is_done(self) -> bool:
        return self.begun and self.error is None


def given_back(job: Job) -> JobOutcome:
    return JobOutcome(job, begun=False, delay_ms=0)


def failed(job: Job, error: BaseException) -> JobOutcome:
    """Its text is cut to what a nack carries; the trace is for the log of the worker."""
    text = f"{type(error).__name__}: {error}".encode(errors="replace")[: limits.ERROR_BYTES_MAX]
    return JobOutcome(
        job,
        error=text.decode(errors="ignore"),
        trace="".join(traceback.format_exception(error)),
        final=isinstance(error, GiveUp),
        delay_ms=error.delay_ms if isinstance(error, RetryLater) else None,
    )


class Handling:
    """A function with what surrounds each call of it."""

    def __init__(self, handler: Callable[[Job], Any], *, before: Before | None = None, after: After | None = None):
        self.handler = handler
        self.before = before
        self.after = after

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.handler)

    def call(self, job: Job) -> JobOutcome:
        """Of a plain function; also `sys.exit()` in it ends neither the thread nor the process."""
        error: BaseException | None = None
        result: object = None
        try:
            if self.before is not None:
                self.before(job)
            result = self.handler(job)
        except BaseException as raised:
            error = raised
        return self._ended(job, error, result)

    async def acall(self, job: Job, time_limit_s: float | None) -> JobOutcome:
        """Of a coroutine function. Raises only if the task that runs it was cancelled."""
        error: BaseException | None = None
        result: object = None
        limit = asyncio.timeout(time_limit_s)
        try:
            if self.before is not None:
                self.before(job)
            async with limit:
                result = await self.handler(job)
        except asyncio.CancelledError as cancelled:
            if _is_being_cancelled():
                raise
            error = cancelled  # it came out of something that the function waited for
        except BaseException as raised:
            error = TimeLimitPassed(f"more than {time_limit_s} s") if limit.expired() else raised
        return self._ended(job, error, result)

    def _ended(self, job: Job, error: BaseException | None, result: object) -> JobOutcome:
        try:
            if self.after is not None:
                self.after(job, error)
        except Exception as raised:
            error = error or raised
        return JobOutcome(job, result=_result_text(job, result)) if error is None else failed(job, error)


def _result_text(job: Job, result: object) -> msgspec.Raw:
    if result is None:
        return NO_RESULT
    try:
        return json_text(result)
    except InvalidRequest as error:
        log.debug("job %d has a result that is not kept: %s", job.seq, error)
        return NO_RESULT


def _is_being_cancelled() -> bool:
    """Whether this task was told to end; if not, the error came out of something that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
