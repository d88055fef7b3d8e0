"""What the verbs over whole topics share: options of the session and the source, a quiet session where Spark is wanted,
progress, and signals."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from topics.errors import ConfigError, TopicsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics.spark.jobs.job import Reporter

LINES_MAX: Final = 1000
JAVA_EXIT_S: Final = 2.0
_STDERR: Final = 2


class JavaStderr:
    """What Java writes to stderr while it starts is kept; what it writes later is passed on.

    A session that does not start raises an exception, and Java's own account of it is a hundred lines. Once it is up,
    only our planners and tasks write there: they warn of lost records. Java keeps the stderr it was started with, so it
    gets a pipe, and a thread reads the pipe as long as this process lives."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=LINES_MAX)
        self._is_up = threading.Event()
        self._reader = threading.Thread(target=self._read, name="topics-java-stderr", daemon=True)
        self._source = -1

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Java that is started meanwhile writes into our pipe, and is heard when this ends well."""
        self._source, target = os.pipe()
        kept = os.dup(_STDERR)
        os.dup2(target, _STDERR)
        os.close(target)
        self._reader.start()
        try:
            yield
        finally:
            os.dup2(kept, _STDERR)
            os.close(kept)
        self._is_up.set()

    def said(self) -> str:
        """What was kept back. Java that did not come up is gone in a moment, and has said everything then."""
        self._reader.join(JAVA_EXIT_S)
        return b"".join(self._lines).decode(errors="replace")

    def _read(self) -> None:
        with open(self._source, "rb") as lines:
            for line in lines:
                if self._is_up.is_set():
                    os.write(_STDERR, line)
                else:
                    self._lines.append(line)


F = TypeVar("F", bound=Callable[..., Any])

EXIT_INTERRUPTED = 130
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_QUIET = {
    "spark.sql.session.timeZone": "UTC",
    _JAVA_OPTIONS: f"-Dlog4j2.configurationFile={files('topics.spark') / 'log4j2.properties'}",
}


def job_options(command: F) -> F:
    """`--master`, `--conf`, `--state`, `--json`."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout, and no progress."),
        click.option("--state", "state_dir", metavar="DIR", help="Where to remember what is done, to go on later."),
        click.option("--conf", "conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; may be repeated."),
        click.option("--master", metavar="URL", help="Spark master; default local[*]."),
    ):
        command = option(command)
    return command


def local_job_options(command: F) -> F:
    """`job_options` of a job that needs no Spark; with `--master` or `--conf` it runs there."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="The result as JSON on stdout, and no progress."),
        click.option("--state", "state_dir", metavar="DIR", help="Where to remember what is done, to go on later."),
        click.option(
            "--conf",
            "conf",
            multiple=True,
            metavar="KEY=VALUE",
            help="Run on Spark, with this setting; may be repeated.",
        ),
        click.option("--master", metavar="URL", help="Run on Spark, at this master; default is in this process."),
    ):
        command = option(command)
    return command


@contextmanager
def session_if_asked(
    name: str, master: str | None, conf: tuple[str, ...], *, check: Callable[[], object]
) -> Iterator[SparkSession | None]:
    """A session for one job if the command line names a master or a setting of Spark; else None."""
    if master is None and not conf:
        check()
        yield None
        return
    with spark_session(name, master, conf, check=check) as spark:
        yield spark


def source_options(command: F) -> F:
    """`--path`, `--cold`, `--url`, `--api-key-file`, `--topic`."""
    for option in (
        click.option(
            "--topic", "topics", default="*", show_default=True, help="Names with commas, or a prefix with *."
        ),
        click.option("--api-key-file", metavar="FILE", help="File with the key; else TOPICS_API_KEY."),
        click.option("--url", metavar="URL", help="A running server."),
        click.option("--cold", "cold_path", metavar="DIR", help="Cold root; else TOPICS_COLD_DIR."),
        click.option("--path", metavar="DIR", help="A data directory, a cold directory, or a copy of either."),
    ):
        command = option(command)
    return command


@contextmanager
def spark_session(
    name: str,
    master: str | None,
    conf: tuple[str, ...],
    *,
    check: Callable[[], object],
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A session for one job; says in one sentence what is missing where Spark cannot run, and why a job failed.

    `check` looks at what the job was given: Spark takes seconds to start, a wrong word is told before."""
    from topics.spark.jobs.job import failure_of
    from topics.spark.start import check_ready

    check_ready()
    chosen = _joined(_QUIET, settings or {}, parsed_conf(conf))
    check()
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    logging.disable()  # a failure comes back as an exception
    java = JavaStderr()
    try:
        with java.taken():
            spark = _started(name, master, chosen)
            spark.sparkContext.setLogLevel("OFF")
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise failure_of(error, java.said()) from None
    try:
        yield spark
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise failure_of(error) from None
    finally:
        with suppress(Py4JError, ConnectionError):  # Java may be gone
            spark.stop()


def _started(name: str, master: str | None, settings: dict[str, str]) -> SparkSession:
    """A session. A signal that comes while Java starts is heard when it is up: left alone before, Java never ends."""
    from pyspark import SparkContext

    from topics.spark.start import session

    told: list[int] = []

    def tell(number: int, frame: Any) -> None:
        if SparkContext._gateway is not None:  # Java is up and ends with us
            raise KeyboardInterrupt
        told.append(number)

    with _handled_by(tell):
        spark = session(f"topics {name}", master=master, conf=settings)
    if told:
        spark.stop()
        raise KeyboardInterrupt
    return spark


def _joined(*settings: Mapping[str, str]) -> dict[str, str]:
    """Later settings go before earlier ones; options of Java add up."""
    java = " ".join(each[_JAVA_OPTIONS] for each in settings if _JAVA_OPTIONS in each)
    return {name: value for each in settings for name, value in each.items()} | {_JAVA_OPTIONS: java}


def parsed_conf(conf: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for pair in conf:
        key, sep, value = pair.partition("=")
        if not sep or not key:
            raise ConfigError(f"--conf takes KEY=VALUE, not {pair!r}")
        settings[key] = value
    return settings


@contextmanager
def progress(*, as_json: bool) -> Iterator[Reporter]:
    """A bar on a terminal, lines elsewhere, nothing for programs."""
    from topics.spark.jobs.job import ProgressBar, ProgressLines, Reporter

    if as_json:
        yield Reporter()
    elif sys.stderr.isatty():
        with ProgressBar() as bar:
            yield bar
    else:
        yield ProgressLines()


@contextmanager
def resumable() -> Iterator[None]:
    """What was done stays done when somebody interrupts; says so."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("interrupted; start it again to go on", err=True)
        raise


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """For a job that ends in good order when it is told to: Ctrl-C and SIGTERM tell it, a second one is heard at once.

    Gives a function that says whether somebody did. Java may have been told too: then the job is cut off, which is no
    error of Spark's."""
    told: list[int] = []

    def tell(number: int, frame: Any) -> None:
        if told:
            raise KeyboardInterrupt
        told.append(number)

    with _handled_by(tell):
        try:
            yield lambda: bool(told)
        except TopicsError:
            raise
        except Exception:
            if told:
                raise KeyboardInterrupt from None
            raise


@contextmanager
def _handled_by(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM go to a handler; what somebody else puts in its place meanwhile stays."""
    before = {each: signal.signal(each, handler) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, previous in before.items():
            if signal.getsignal(each) is handler:
                signal.signal(each, previous)
