"""Reporter: progress of a job for people (a bar on a terminal, lines elsewhere), or silence for programs."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final, Protocol, Self

LINE_EVERY_S: Final = 5.0


class Reporter(Protocol):
    def start(self, what: str, total: int | None, unit: str) -> None:
        """A new phase; `total` None when nobody knows."""

    def advance(self, done: int, *, rows: int = 0, total: int | None = None) -> None:
        """So many units are done in all, with so many rows in all."""

    def note(self, text: str) -> None:
        """A sentence worth keeping."""


class NoProgress:
    """Says nothing."""

    def start(self, what: str, total: int | None, unit: str) -> None:
        return

    def advance(self, done: int, *, rows: int = 0, total: int | None = None) -> None:
        return

    def note(self, text: str) -> None:
        return


class ProgressLines:
    """A line on stderr every few seconds: done, rows per second, time left."""

    def __init__(self, *, every_s: float = LINE_EVERY_S) -> None:
        self._every_s = every_s
        self._what = self._unit = ""
        self._total: int | None = None
        self._begun = self._told = 0.0

    def start(self, what: str, total: int | None, unit: str) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._begun = self._told = time.monotonic()

    def advance(self, done: int, *, rows: int = 0, total: int | None = None) -> None:
        self._total = total if total is not None else self._total
        now = time.monotonic()
        if now - self._told >= self._every_s or done == self._total:
            self._told = now
            self.note(describe(self._what, done, self._total, self._unit, rows, now - self._begun))

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class ProgressBar:
    """A progress bar on a terminal; use it as a context."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} {task.fields[unit]}"),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task: object = None
        self._begun = 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def start(self, what: str, total: int | None, unit: str) -> None:
        for task in self._progress.task_ids:
            self._progress.remove_task(task)
        self._begun = time.monotonic()
        self._task = self._progress.add_task(what, total=total or 1, unit=unit, rate="")

    def advance(self, done: int, *, rows: int = 0, total: int | None = None) -> None:
        per_s = rows / max(time.monotonic() - self._begun, 1e-9)
        rate = f"{per_s:,.0f} rows/s" if rows else ""
        task = self._progress.task_ids[-1]
        self._progress.update(task, completed=done, rate=rate)
        if total is not None:
            self._progress.update(task, total=max(total, 1))

    def note(self, text: str) -> None:
        self._progress.console.print(text, highlight=False)


def describe(what: str, done: int, total: int | None, unit: str, rows: int, elapsed_s: float) -> str:
    """`verify: 30 of 120 segments, 1,200,000 rows/s, 12 s left`."""
    parts = [f"{what}: {done:,}{f' of {total:,}' if total is not None else ''} {unit}"]
    if rows and elapsed_s > 0:
        parts.append(f"{rows / elapsed_s:,.0f} rows/s")
    if total and 0 < done < total:
        parts.append(f"{elapsed_s * (total - done) / done:,.0f} s left")
    return ", ".join(parts)
