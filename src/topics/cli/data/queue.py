"""`topics queue`: the verbs of a lease queue."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from types import FrameType

import click

from topics.cli.remote import (
    F,
    echo_json,
    json_option,
    plain,
    say,
    server_options,
    show_fields,
    show_rows,
    table_options,
)
from topics.client import Client
from topics.client.jobs.claims import retry_delay_ms
from topics.client.jobs.work import Work
from topics.limits import DAY_MS, SIGNAL_LOOK_S
from topics.model.config import RetryRule
from topics.model.results import Job
from topics.model.values import ProgressReport

JOB_COLUMNS = ("seq", "lease_id", "deadline", "deliveries", "tag", "data")
NODE = f"{socket.gethostname()}.{os.getpid()}"


@click.group()
def queue() -> None:
    """Queues: look at jobs and workers, pause, claim and ack, or work on them with a command.

    \b
    topics topic create jobs --set type=queue
    topics queue ls
    topics queue jobs jobs --state delayed
    echo '{"to": "ada"}' | topics produce jobs
    topics queue claim jobs --node me
    topics queue ack jobs 1 --node me
    topics queue work jobs -- ./send-mail
    """


def node_option(command: F) -> F:
    return click.option("--node", default=NODE, show_default="host and pid", help="Who holds the leases.")(command)


@queue.command()
@click.argument("name")
@node_option
@click.option("--max", "most", default=1, show_default=True, type=click.IntRange(1, 1000), help="Jobs to lease.")
@click.option("--lease-ms", type=click.IntRange(min=0), help="Length of the lease; default is the queue's.")
@json_option
@server_options
def claim(client: Client, name: str, *, node: str, most: int, lease_ms: int | None, as_json: bool) -> None:
    """Lease jobs: as JSON lines or, on a terminal, as a table. No job is no line, and no error.

    \b
    topics queue claim jobs --node me --max 10
    """
    jobs = client.queue(name).claim(node, max=most, lease_ms=lease_ms).claimed
    if as_json or not sys.stdout.isatty():
        for job in jobs:
            echo_json(job)
    else:
        rows = ([getattr(job, column) for column in JOB_COLUMNS] for job in jobs)
        show_rows(JOB_COLUMNS, rows, as_json=False)


@queue.command()
@click.argument("name")
@click.argument("seqs", nargs=-1, required=True, type=int)
@node_option
@json_option
@server_options
def ack(client: Client, name: str, seqs: tuple[int, ...], *, node: str, as_json: bool) -> None:
    """Complete jobs: they are deleted.

    \b
    topics queue ack jobs 3 4 5 --node me
    """
    show_fields(plain(client.queue(name).ack(list(seqs), node=node)), as_json=as_json)


@queue.command()
@click.argument("name")
@click.argument("seqs", nargs=-1, required=True, type=int)
@node_option
@click.option(
    "--delay-ms", type=click.IntRange(min=0), help="Claimable again after this time.  [default: as retry says]"
)
@click.option("--error", help="Why; shown by `queue jobs` and kept with a dead letter.")
@click.option("--final", is_flag=True, help="Move them to the dead letters at once.")
@json_option
@server_options
def nack(
    client: Client,
    name: str,
    seqs: tuple[int, ...],
    *,
    node: str,
    delay_ms: int | None,
    error: str | None,
    final: bool,
    as_json: bool,
) -> None:
    """Give jobs back.

    \b
    topics queue nack jobs 3 --node me --delay-ms 60000
    topics queue nack jobs 4 --node me --final --error 'no such customer'
    """
    done = client.queue(name).nack(list(seqs), node=node, delay_ms=delay_ms, error=error, final=final)
    show_fields(plain(done), as_json=as_json)


@queue.command()
@click.argument("name")
@click.argument("seqs", nargs=-1, required=True, type=int)
@node_option
@click.option("--lease-ms", required=True, type=click.IntRange(min=0), help="Counted from now.")
@click.option("--progress", type=click.FloatRange(0, 1), help="How far the work is, 0 to 1; shown by `queue jobs`.")
@click.option("--progress-text", metavar="TEXT", help="The same in words, up to 256 bytes.")
@json_option
@server_options
def extend(
    client: Client,
    name: str,
    seqs: tuple[int, ...],
    *,
    node: str,
    lease_ms: int,
    progress: float | None,
    progress_text: str | None,
    as_json: bool,
) -> None:
    """Hold jobs longer.

    \b
    topics queue extend jobs 3 --node me --lease-ms 60000
    topics queue extend jobs 3 --node me --lease-ms 60000 --progress 0.4 --progress-text '400 of 1000 rows'
    """
    report = None if progress is None and progress_text is None else ProgressReport(progress, progress_text)
    told = [report] * len(seqs) if report is not None else ()
    done = client.queue(name).extend(list(seqs), node=node, lease_ms=lease_ms, progress=told)
    show_fields(plain(done), as_json=as_json)


@queue.command()
@click.argument("name")
@table_options
@server_options
def stats(client: Client, name: str, *, as_json: bool) -> None:
    """How many jobs are ready, in flight and dead-lettered.

    \b
    topics queue stats jobs
    """
    state = client.queue(name).state(touch=False)
    if state.queue is None:
        raise click.ClickException(f"topic {name!r} is no queue")
    show_fields({"topic": name, "count": state.count, **plain(state.queue)}, as_json=as_json)


# --- work ------------------------------------------------------------------------------------------------------------


@queue.command()
@click.argument("name")
@click.argument("command", nargs=-1, required=True)
@node_option
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after this many jobs.")
@click.option("--once", is_flag=True, help="Stop when the queue is empty.")
@click.option("--concurrency", default=1, show_default=True, type=click.IntRange(1, 256), help="Commands at a time.")
@click.option("--lease-ms", type=click.IntRange(min=0), help="Length of a lease, renewed while a command runs.")
@click.option(
    "--retry-delay-ms",
    type=click.IntRange(min=1, max=DAY_MS),
    help="After a first failure; doubles with each.  [default: as the queue's retry says]",
)
@server_options
def work(
    client: Client,
    name: str,
    command: tuple[str, ...],
    *,
    node: str,
    count: int | None,
    once: bool,
    concurrency: int,
    lease_ms: int | None,
    retry_delay_ms: int | None,
) -> None:
    """Run a command per job, its data on stdin: status 0 acks the job, any other gives it back.

    \b
    topics queue work jobs -- ./send-mail
    topics queue work jobs --concurrency 4 -- ./resize
    topics queue work jobs --once -- sh -c 'jq -r .to'

    SIGTERM and Ctrl-C let running commands finish. A command finds JOB_QUEUE, JOB_SEQ, JOB_TAG and JOB_DELIVERIES in
    its environment.
    """
    retry = None if retry_delay_ms is None else RetryRule(base_ms=retry_delay_ms, max_ms=DAY_MS)
    if retry is None and client.queue(name).state(touch=False).config.retry is None:
        retry = RetryRule()  # else a job that fails comes again at once, and at once again
    crew = WorkLoops(command, concurrency, retry=retry, count=count)
    with crew.signals(), ThreadPoolExecutor(concurrency) as pool:
        loops = [
            pool.submit(crew.work, client.queue(name).work(node, lease_ms=lease_ms, until_empty=once, stop=stop))
            for stop in crew.stops
        ]
        _await_all(loops)
    if crew.interrupted:
        raise KeyboardInterrupt


class WorkLoops:
    """Loops over one queue that share a count and end together."""

    def __init__(
        self, command: tuple[str, ...], concurrency: int, *, retry: RetryRule | None, count: int | None
    ) -> None:
        self._command = command
        self._retry = retry
        self._left = count
        self._lock = threading.Lock()
        # One for each loop: one that finds the queue empty ends by itself.
        self.stops = [threading.Event() for _ in range(concurrency)]
        self.interrupted = False

    @contextmanager
    def signals(self) -> Iterator[None]:
        def on_signal(number: int, frame: FrameType | None) -> None:
            self.interrupted |= number == signal.SIGINT
            self._stop()

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self) -> None:
        for stop in self.stops:
            stop.set()

    def work(self, jobs: Work) -> None:
        try:
            for held in jobs:
                if not self._may_begin():
                    break  # gives the job back
                status = _run(self._command, held.job, queue=jobs.queue.name)
                if status == 0:
                    held.ack()
                else:
                    held.nack(self._delay_ms(held.job), error=f"{self._command[0]} ended with status {status}")
        except BaseException:
            self._stop()  # what one loop cannot mend the others cannot either
            raise
        finally:
            jobs.close()

    def _delay_ms(self, job: Job) -> int | None:
        return None if self._retry is None else retry_delay_ms(self._retry, job.deliveries, random.random())

    def _may_begin(self) -> bool:
        with self._lock:
            if self._left is None:
                return True
            self._left -= 1
            if self._left <= 0:
                self._stop()
            return self._left >= 0


def _await_all(loops: list[Future[None]]) -> None:
    """Looks up now and then: a signal that the system gives to another thread does not wake this one, which alone
    runs handlers. About one in fifty is, while commands are being started."""
    while wait(loops, timeout=SIGNAL_LOOK_S).not_done:
        pass
    for loop in loops:
        loop.result()


def _run(command: tuple[str, ...], job: Job, *, queue: str) -> int:
    environment = {
        **os.environ,
        "JOB_QUEUE": queue,
        "JOB_SEQ": str(job.seq),
        "JOB_TAG": (job.tag or "").replace("\0", "\ufffd"),  # an environment cannot hold it
        "JOB_DELIVERIES": str(job.deliveries),
    }
    try:
        status = subprocess.run(command, input=bytes(job.data), env=environment, check=False).returncode
    except OSError as error:
        raise click.ClickException(f"{command[0]} cannot be run: {error.strerror}") from None
    if status:
        say(f"topics: job {job.seq} failed with status {status}")
    return status
