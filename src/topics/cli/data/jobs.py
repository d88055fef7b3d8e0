"""`topics queue ls|jobs|workers|pause|resume|cancel|retry|purge`: look at queues, act on their jobs."""

from __future__ import annotations

import click

from topics.cli.data.queue import queue
from topics.cli.remote import (
    confirm,
    json_option,
    plain,
    rehearse,
    server_options,
    show_fields,
    show_rows,
    sure_options,
    table_options,
)
from topics.client import Client
from topics.errors import TopicNotFound
from topics.model.results import JobInfo, JobProgress, JobState

QUEUE_COLUMNS = ("queue", "ready", "in_flight", "delayed", "dead_lettered", "oldest_ms", "paused")
JOB_COLUMNS = (
    "seq",
    "state",
    "ts",
    "tag",
    "priority",
    "deliveries",
    "node",
    "deadline",
    "due",
    "unique",
    "error",
    "progress",
)
WORKER_COLUMNS = ("node", "in_flight", "waiting", "streams", "first_deadline", "last_seen")


@queue.command("ls")
@click.option("--prefix", default="", help="Only names that begin so.")
@table_options
@server_options
def list_queues(client: Client, prefix: str, *, as_json: bool) -> None:
    """Queues with what is in them.

    \b
    topics queue ls
    topics queue ls --prefix mail --json
    """
    rows = []
    for entry in client.topics(prefix):
        if entry.type != "queue":
            continue
        try:
            state = client.topic(entry.topic).state(touch=False)
        except TopicNotFound:
            continue  # it was just deleted
        if state.queue is not None:
            counts = [getattr(state.queue, column) for column in QUEUE_COLUMNS[1:-1]]
            rows.append([entry.topic, *counts, state.config.paused])
    show_rows(QUEUE_COLUMNS, rows, as_json=as_json)


@queue.command("jobs")
@click.argument("name")
@click.option("--state", type=click.Choice(["ready", "delayed", "in_flight"]), help="Only those in this state.")
@click.option("--tag", help="Only those with exactly this tag.")
@table_options
@server_options
def list_jobs(client: Client, name: str, *, state: JobState | None, tag: str | None, as_json: bool) -> None:
    """The jobs of a queue, without claiming any.

    \b
    topics queue jobs mails
    topics queue jobs mails --state delayed --json
    """
    existing(client, name)
    jobs = client.queue(name).jobs(state=state, tag=tag)
    rows = ([getattr(job, column) for column in JOB_COLUMNS[:-1]] + [_progress(job, as_json=as_json)] for job in jobs)
    show_rows(JOB_COLUMNS, rows, as_json=as_json)


def _progress(job: JobInfo, *, as_json: bool) -> JobProgress | str | None:
    told = job.progress
    if told is None or as_json:
        return told
    percent = None if told.fraction is None else f"{told.fraction:.0%}"
    return " ".join(filter(None, (percent, told.text)))


@queue.command("workers")
@click.argument("name")
@table_options
@server_options
def list_workers(client: Client, name: str, *, as_json: bool) -> None:
    """Who holds jobs of a queue, waits for some, or called in the last minutes.

    \b
    topics queue workers mails
    """
    existing(client, name)
    workers = client.queue(name).workers()
    rows = ([getattr(worker, column) for column in WORKER_COLUMNS] for worker in workers)
    show_rows(WORKER_COLUMNS, rows, as_json=as_json)


@queue.command()
@click.argument("name")
@json_option
@server_options
def pause(client: Client, name: str, *, as_json: bool) -> None:
    """Hand out nothing from now on; jobs in flight may be finished.

    \b
    topics queue pause mails
    """
    existing(client, name)
    show_fields({"topic": name, "paused": client.queue(name).pause()}, as_json=as_json)


@queue.command()
@click.argument("name")
@json_option
@server_options
def resume(client: Client, name: str, *, as_json: bool) -> None:
    """Hand out jobs again.

    \b
    topics queue resume mails
    """
    existing(client, name)
    show_fields({"topic": name, "paused": client.queue(name).resume()}, as_json=as_json)


@queue.command()
@click.argument("name")
@click.argument("seqs", nargs=-1, required=True, type=int)
@json_option
@server_options
def cancel(client: Client, name: str, seqs: tuple[int, ...], *, as_json: bool) -> None:
    """Delete jobs, in flight or not.

    \b
    topics queue cancel mails 3 4
    """
    existing(client, name)
    show_fields(plain(client.queue(name).cancel(list(seqs))), as_json=as_json)


@queue.command()
@click.argument("name")
@click.argument("seqs", nargs=-1, required=True, type=int)
@json_option
@server_options
def retry(client: Client, name: str, seqs: tuple[int, ...], *, as_json: bool) -> None:
    """Make delayed jobs ready now.

    \b
    topics queue retry mails 3 4
    """
    existing(client, name)
    show_fields(plain(client.queue(name).retry(list(seqs))), as_json=as_json)


@queue.command()
@click.argument("name")
@sure_options
@json_option
@server_options
def purge(client: Client, name: str, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Delete every job that is there now, in flight or not.

    \b
    topics queue purge mails --dry-run
    topics queue purge mails --yes
    """
    count = existing(client, name)
    if dry_run:
        rehearse(f"would delete {count} jobs of {name}", {"topic": name, "deleted": count}, as_json=as_json)
        return
    confirm(f"Delete {count} jobs of {name}?", yes=yes)
    show_fields({"topic": name, "deleted": client.queue(name).purge().deleted}, as_json=as_json)


def existing(client: Client, name: str) -> int:
    """How many jobs a queue has. A look must not create one, as the first use of a handle would."""
    state = client.topic(name).state(touch=False)
    if state.type != "queue":
        raise click.ClickException(f"topic {name!r} is no queue")
    return state.count
