"""Processes: functions that run in child processes, one job at a time in each, for work that keeps a processor busy.

Parent and child talk over a pipe: a job there, progress and an outcome back, all as JSON. The child is told where its
function is (module and name) and imports it. Always holds: a child that dies (a crash, no memory, a time limit) costs
one delivery of the job it had, and the next job gets a new child; a child ends when its parent does."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import msgspec

from topics.client.jobs.handling import Handling, JobOutcome, TimeLimitPassed, failed
from topics.errors import ConfigError
from topics.model.results import Job

_context = multiprocessing.get_context("spawn")  # a fork would copy our locks in whatever state they are
_decode_job = msgspec.json.Decoder(Job).decode
START_S = 60.0  # for a child to import its function


class ChildDied(Exception):
    """The process that had the job ended without an outcome."""


class ChildProgress(msgspec.Struct, frozen=True, tag="progress"):
    """What a function in a child said of its job."""

    lease_id: str
    fraction: float | None
    text: str | None


_decode_told = msgspec.json.Decoder(JobOutcome | ChildProgress).decode


class FunctionAddress(NamedTuple):
    """Where a function is: module and name."""

    module: str
    name: str

    @classmethod
    def of(cls, function: Callable[..., Any]) -> FunctionAddress:
        name = getattr(function, "__qualname__", "")
        if not name or "<" in name:
            raise ConfigError(f"a process imports its function by name, so {function!r} must be one of a module")
        return cls(function.__module__, name)

    def found(self) -> Callable[..., Any]:
        """A name may meanwhile stand for what a decorator made of the function, which then has it as `handler`."""
        at: Any = import_module(self.module)
        for part in self.name.split("."):
            at = getattr(at, part)
        function: Callable[..., Any] = getattr(at, "handler", at)
        return function


FunctionAddresses = tuple[FunctionAddress, FunctionAddress | None, FunctionAddress | None]


def addresses(handling: Handling) -> FunctionAddresses:
    """Of the function and its hooks."""
    before, after = handling.before, handling.after
    return (
        FunctionAddress.of(handling.handler),
        None if before is None else FunctionAddress.of(before),
        None if after is None else FunctionAddress.of(after),
    )


class ProcessCall:
    """Runs jobs in a child process, which is made anew when it has died. `call` is for one thread; `close` for any."""

    def __init__(self, where: FunctionAddresses, time_limit_s: float | None) -> None:
        self._where = where
        self._limit_s = time_limit_s
        self._lock = threading.Lock()
        self._closed = False
        self._child: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None

    def call(self, job: Job) -> JobOutcome:
        try:
            pipe = self._started()
            pipe.send_bytes(msgspec.json.encode(job))
            answer = self._answer(pipe, job)
            if answer is None:
                self._end()
                return failed(job, TimeLimitPassed(f"more than {self._limit_s:g} s; its process was killed"))
        except (EOFError, OSError) as error:
            status = self._end()
            return failed(job, ChildDied(f"its process ended with status {status}" if status is not None else error))
        return msgspec.structs.replace(answer, job=job)

    def _answer(self, pipe: Connection, job: Job) -> JobOutcome | None:
        """What became of the job; None if its time is over. What the child says of its progress is passed on."""
        deadline = None if self._limit_s is None else time.monotonic() + self._limit_s
        while pipe.poll(None if deadline is None else max(deadline - time.monotonic(), 0)):
            told = _decode_told(pipe.recv_bytes())
            if isinstance(told, JobOutcome):
                return told
            if told.lease_id == job.lease_id:  # else a thread that the job before left behind
                job.progress(told.fraction, told.text)
        return None

    def _started(self) -> Connection:
        if self._pipe is not None and self._child is not None and self._child.is_alive():
            return self._pipe
        self._end()
        ours, theirs = _context.Pipe()
        child = _context.Process(target=_serve, args=(theirs, self._where), name="topics-worker", daemon=True)
        with self._lock:
            if self._closed:
                raise EOFError("the worker has ended")
            child.start()
            self._child, self._pipe = child, ours
        theirs.close()  # so that the end of the child is the end of the pipe
        if not ours.poll(START_S):
            raise EOFError(f"its process did not start within {START_S:g} s")
        ours.recv_bytes()
        return ours

    def _end(self) -> int | None:
        with self._lock:
            child, self._child, pipe, self._pipe = self._child, None, self._pipe, None
        if child is None:
            return None
        child.kill()
        child.join()
        if pipe is not None:
            pipe.close()
        return child.exitcode

    def close(self) -> None:
        with self._lock:
            self._closed = True
            child = self._child
            if child is not None:
                child.kill()  # whoever waits for it is told by the end of the pipe


def _serve(pipe: Connection, where: FunctionAddresses) -> None:
    """The child. Signals that end the worker come to all of its processes: this one ends with its pipe."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    function, before, after = (None if at is None else at.found() for at in where)
    assert function is not None
    handling = Handling(function, before=before, after=after)
    pipe.send_bytes(b"ready")
    sending = threading.Lock()

    def send(told: JobOutcome | ChildProgress) -> None:
        with sending, suppress(BrokenPipeError):  # a parent that is gone ends us with the next job
            pipe.send_bytes(msgspec.json.encode(told))

    while True:
        try:
            job = _decode_job(pipe.recv_bytes())
        except EOFError:
            return
        job.tells(lambda job, progress: send(ChildProgress(job.lease_id, progress.fraction, progress.text)))
        outcome = handling.call(job)
        send(msgspec.structs.replace(outcome, job=_bare(job)))


def _bare(job: Job) -> Job:
    """The parent has its data."""
    return msgspec.structs.replace(job, data=msgspec.Raw(b"null"), meta=msgspec.UNSET)
