"""What every job shares.

`JobSource` is where a job reads from, as options of the `topics` source. A `Reporter` takes its progress: a bar on a
terminal, lines elsewhere, or nothing. A `Ledger` keeps what a job has finished, one JSON line each, so that a second
start resumes; it belongs to one set of inputs (`title`), and a torn last line is work to do again. `failure_of` finds
the sentence of our own error inside the text that Spark wraps around it. `run_all` runs the parts of a job, on Spark or
without it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from topics.errors import ConfigError, TopicsError
from topics.spark.logs.log import open_log
from topics.spark.logs.read_files import local_path
from topics.spark.options import read_options
from topics.spark.planning.cut import TopicCut

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

A = TypeVar("A")
B = TypeVar("B")


def run_all(spark: SparkSession | None, work: Callable[[A], B], items: Sequence[A]) -> list[B]:
    """What `work` makes of each item: on Spark, or in this process, with a thread for each core. Threads are enough:
    the work is reading files and native loops, which let other threads run."""
    if spark is not None:
        tasks = min(len(items), max(spark.sparkContext.defaultParallelism * 4, 1))
        found: list[B] = spark.sparkContext.parallelize(items, tasks).map(work).collect()
        return found
    pool = ThreadPoolExecutor(min(len(items), os.cpu_count() or 1) or 1)
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSource:
    """A directory or a server, and the topics wanted: names with commas, or a prefix with a trailing `*`."""

    path: str | None = None
    cold_path: str | None = None
    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    api_key_file: str | None = None
    topics: str = "*"

    def options(self, **more: str) -> dict[str, str]:
        """Options of a read."""
        given = {
            "path": self.path,
            "coldPath": self.cold_path,
            "url": self.url,
            "apiKey": self.api_key,
            "apiKeyFile": self.api_key_file,
            **topic_option(self.topics),
        }
        return {name: value for name, value in given.items() if value is not None} | more

    def cuts(self) -> dict[str, TopicCut]:
        """The topics at this moment; raises ConfigError for what cannot be read."""
        if (self.path is None) == (self.url is None):
            raise ConfigError("give exactly one of --path (a data directory) and --url (a running server)")
        from topics.spark.planning.batch import address_of, wanted_cuts  # late: these need pyarrow

        options = read_options(self.options())
        with closing(open_log(address_of(options))) as log:
            return wanted_cuts(log, options)

    @property
    def shown(self) -> str:
        return self.path or self.url or "?"


def topic_option(topics: str) -> dict[str, str]:
    """The option that names these topics: names with commas, or a prefix with a trailing `*`, alone for all topics."""
    if topics == "*":
        return {"subscribePattern": ".*"}
    return {"subscribePrefix": topics[:-1]} if topics.endswith("*") else {"subscribe": topics}


LINE_EVERY_S: Final = 5.0


class Reporter:
    """Takes the progress of a job; this one does nothing with it."""

    def start(self, what: str, total: int | None, unit: str) -> None:
        """A new phase; `total` None when nobody knows."""

    def advance(self, done: int, *, rows: int = 0, total: int | None = None) -> None:
        """So many units are done in all, with so many rows in all."""

    def note(self, text: str) -> None:
        """A sentence worth keeping."""


class ProgressLines(Reporter):
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


class ProgressBar(Reporter):
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


class Ledger:
    """Finished work by key."""

    def __init__(self, path: Path, title: str) -> None:
        self._path = path
        self._title = title
        self._done: dict[str, Any] = {}
        self._load()

    @property
    def resumed(self) -> bool:
        """Whether an earlier run left something."""
        return bool(self._done)

    def get(self, key: str) -> Any:
        return self._done.get(key)

    def __contains__(self, key: str) -> bool:
        return key in self._done

    def record(self, key: str, value: Any = True) -> None:
        self.record_all({key: value})

    def record_all(self, entries: dict[str, Any]) -> None:
        self._done.update(entries)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self._path.exists()
        with self._path.open("a", encoding="utf-8") as file:
            if is_new:
                file.write(json.dumps({"ledger": self._title}) + "\n")
            for key, value in entries.items():
                file.write(json.dumps({"key": key, "value": value}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def finish(self) -> None:
        """The job is complete: the next run begins anew."""
        self._path.unlink(missing_ok=True)

    def _load(self) -> None:
        if not self._path.exists():
            return
        text = self._path.read_text(encoding="utf-8", errors="replace")
        parsed = [entry for line in text.splitlines() if (entry := _parsed(line)) is not None]
        if not parsed or parsed[0].get("ledger") != self._title:
            self._path.unlink()
            return
        self._done = {entry["key"]: entry["value"] for entry in parsed[1:] if "key" in entry}
        if not text.endswith("\n"):  # a torn line must not take the next one with it
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n")


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def place_of(source: str) -> str:
    """The absolute name of a source: one relative name means different sources in different folders."""
    local = Path(local_path(source))
    return str(local.resolve()) if source and local.exists() else source


def ledger_path(job: str, *inputs: str, folder: str | None = None) -> Path:
    """The ledger of a job over these inputs, in `folder` or else in the user's state directory."""
    name = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]
    base = Path(folder) if folder else Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return (base if folder else base / "topics") / f"{job}-{name}.jsonl"


_OURS: Final = re.compile(r"^(?:\w+\.)*?(topics\.[\w.]+): (.+)$", re.MULTILINE)
_WRAPPING: Final = re.compile(r"\AAn error occurred while calling \S+\n: (?:[\w.$]+: )?")
"""What Py4J puts in front of an exception of Java: the call, and the class."""
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+: .+)$", re.MULTILINE)
_GONE: Final = re.compile(r"JAVA_GATEWAY_EXITED|stopped SparkContext")
"""Java ended, or Spark inside it: the reason is in what Java wrote last."""
_LAST_WORDS: Final = re.compile(r'^(?:Exception in thread "main" \S+: |Error: |\S+ ERROR \w+: )(.+)$', re.MULTILINE)
_CHARS_MAX: Final = 400


class JobFailed(TopicsError):
    """A job ended before it was complete."""


def failure_of(error: BaseException, java_said: str = "") -> TopicsError:
    """The sentence behind an error that Spark raised; Spark's own if nothing of ours is in it.

    `java_said` is what Java wrote to its stderr."""
    found = _OURS.findall(str(error))
    if not found:
        return JobFailed(f"Spark failed: {_own_sentence(error, java_said)[:_CHARS_MAX]}")
    name, sentence = found[-1]
    return ConfigError(sentence) if name.endswith(".ConfigError") else JobFailed(sentence)


def _own_sentence(error: BaseException, java_said: str) -> str:
    """Spark's first line and its innermost cause, or, where Java has ended, the first error that Java wrote."""
    told = _WRAPPING.sub("", str(error))
    words = _LAST_WORDS.findall(java_said) if _GONE.search(told) else []
    if words:
        return str(words[0])
    first = next(filter(None, map(str.strip, told.splitlines())), type(error).__name__)
    causes = [cause for cause in _CAUSE.findall(told) if cause not in first]
    return f"{first} ({causes[-1]})" if causes else first
