"""`topics queue`: the verbs of a lease queue."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import click
import msgspec

from topics.cli.remote import F, json_option, plain, say, server_options, show_fields
from topics.client import Client
from topics.model.results import Job

NODE = f"{socket.gethostname()}.{os.getpid()}"
POLL_S = 0.25


@click.group()
def queue() -> None:
    """Queues: claim, ack, nack and extend jobs, or work on them with a command.

    \b
    topics topic create jobs --set type=queue
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
@server_options
def claim(client: Client, name: str, *, node: str, most: int, lease_ms: int | None) -> None:
    """Lease jobs; each is one JSON line. No job is no line, and no error.

    \b
    topics queue claim jobs --node me --max 10
    """
    for job in client.queue(name).claim(node, max=most, lease_ms=lease_ms).claimed:
        click.echo(msgspec.json.encode(job))


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
@click.option("--delay-ms", default=0, type=click.IntRange(min=0), help="Claimable again only after this time.")
@json_option
@server_options
def nack(client: Client, name: str, seqs: tuple[int, ...], *, node: str, delay_ms: int, as_json: bool) -> None:
    """Give jobs back.

    \b
    topics queue nack jobs 3 --node me --delay-ms 60000
    """
    show_fields(plain(client.queue(name).nack(list(seqs), node=node, delay_ms=delay_ms)), as_json=as_json)


@queue.command()
@click.argument("name")
@click.argument("seqs", nargs=-1, required=True, type=int)
@node_option
@click.option("--lease-ms", required=True, type=click.IntRange(min=0), help="Counted from now.")
@json_option
@server_options
def extend(client: Client, name: str, seqs: tuple[int, ...], *, node: str, lease_ms: int, as_json: bool) -> None:
    """Hold jobs longer.

    \b
    topics queue extend jobs 3 --node me --lease-ms 60000
    """
    show_fields(plain(client.queue(name).extend(list(seqs), node=node, lease_ms=lease_ms)), as_json=as_json)


@queue.command()
@click.argument("name")
@json_option
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


@queue.command()
@click.argument("name")
@click.argument("command", nargs=-1, required=True)
@node_option
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after this many jobs.")
@click.option("--once", is_flag=True, help="Stop when the queue is empty.")
@click.option("--retry-delay-ms", default=1000, show_default=True, type=click.IntRange(min=0), help="After a failure.")
@server_options
def work(
    client: Client,
    name: str,
    command: tuple[str, ...],
    *,
    node: str,
    count: int | None,
    once: bool,
    retry_delay_ms: int,
) -> None:
    """Run a command per job, its data on stdin: status 0 acks the job, any other gives it back.

    \b
    topics queue work jobs -- ./send-mail
    topics queue work jobs --once -- sh -c 'jq -r .to'
    """
    handle, done = client.queue(name), 0
    try:
        while count is None or done < count:
            claimed = handle.claim(node).claimed
            if not claimed and once:
                return
            if not claimed:
                time.sleep(POLL_S)
                continue
            job = claimed[0]
            if _run(command, job):
                handle.ack([job], node=node)
            else:
                handle.nack([job], node=node, delay_ms=retry_delay_ms)
            done += 1
    except KeyboardInterrupt:
        sys.exit(130)


def _run(command: tuple[str, ...], job: Job) -> bool:
    environment = {**os.environ, "TOPICS_JOB_SEQ": str(job.seq), "TOPICS_JOB_DELIVERIES": str(job.deliveries)}
    result = subprocess.run(command, input=bytes(job.data), env=environment, check=False)
    if result.returncode:
        say(f"topics: job {job.seq} failed with status {result.returncode}")
    return result.returncode == 0
