"""Driver: what the kernel needs from the world it runs in; one protocol, three worlds.

The asyncio driver serves the HTTP server, the blocking one the embedded library, the simulated one the tests. All
engine state belongs to one *owner* at a time: the loop's thread, the holder of the embedded lock, the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from topics.engine.ticket import Ticket

T = TypeVar("T")

Outcome = Callable[["T | None", "BaseException | None"], None]


def carried_out(run: Callable[[Callable[[], Any], Outcome[Any]], None], job: Callable[[], T]) -> Ticket[T]:
    """The ticket of a job; `run` is one of the driver's: `carried_out(driver.run_read, job)`. Whoever goes on from the
    outcome does so as a waiter, so that its own mistakes are answered too."""
    ticket: Ticket[T] = Ticket()

    def done(value: T | None, error: BaseException | None) -> None:
        if error is not None:
            ticket.fail(error)
        else:
            ticket.resolve(value)  # type: ignore[arg-type]

    run(job, done)
    return ticket


class Driver(Protocol):
    def post(self, step: Callable[[], None]) -> None:
        """From any thread: run `step` as the owner, soon, in the order of posting."""

    def wake(self) -> None:
        """From the owner: flush the kernel at the end of this turn."""

    def soon(self, step: Callable[[], None]) -> None:
        """From the owner: run `step` as the owner after this turn."""

    def later(self, delay_ms: float, step: Callable[[], None]) -> None:
        """From the owner: run `step` as the owner when so much time has passed."""

    def tick_in(self, seconds: float) -> None:
        """From the owner: have the kernel tick after this time at the latest; where ticks come anyway, they may do."""

    def run(self, job: Callable[[], T], done: Outcome[T]) -> None:
        """From the owner: run `job` on the background pool, then `done(value, error)` as the owner."""

    def run_read(self, job: Callable[[], T], done: Outcome[T]) -> None:
        """As `run`, for a short read of hot files; never behind a long job."""

    def run_cold(self, job: Callable[[], T], done: Outcome[T]) -> None:
        """As `run`, on the pool that may wait for the cold store."""

    def yield_gil(self) -> None:
        """From a job: let the owner have the interpreter for a moment."""

    def side_by_side(self, steps: Iterable[Callable[[], None]]) -> None:
        """From a job: carry out steps that wait for the disk, some at a time. When it returns or raises, all are over.
        A simulator takes one after the other."""

    def pause(self, seconds: float) -> None:
        """From a job: wait, to keep to a rate. A simulator does not wait."""

    def ask(self, step: Callable[[], Ticket[T]]) -> T:
        """From a job: run `step` as the owner and wait for its ticket."""
