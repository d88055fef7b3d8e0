"""`topics archive`: topics into a table of files."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Literal

import click
import msgspec

from topics.cli.spark.spark_job import (
    EXIT_INTERRUPTED,
    interruptible,
    job_options,
    progress,
    resumable,
    source_options,
    spark_session,
)


@click.command()
@source_options
@click.option("--to", required=True, metavar="DIR", help="Folder of the archive.")
@click.option("--format", "format_", type=click.Choice(["parquet", "delta"]), default="parquet", show_default=True)
@click.option("--available-now/--continuous", default=True, help="Stop when everything is archived, or go on.")
@click.option("--every", default="60 seconds", show_default=True, help="Pause between batches of a continuous run.")
@click.option("--trim", is_flag=True, help="Delete from the topics what is safely archived.")
@click.option("--on-loss", type=click.Choice(["fail", "warn"]), default="fail", show_default=True)
@job_options
def archive(
    *,
    path: str | None,
    cold_path: str | None,
    url: str | None,
    api_key_file: str | None,
    topics: str,
    to: str,
    format_: Literal["parquet", "delta"],
    available_now: bool,
    every: str,
    trim: bool,
    on_loss: Literal["fail", "warn"],
    master: str | None,
    conf: tuple[str, ...],
    state_dir: str | None,
    as_json: bool,
) -> None:
    """Copy topics into a table by topic and date, incrementally and exactly once.

    Its state is in the archive itself, so starting it again goes on where it was.

    \b
    topics archive --url http://localhost:4000 --topic 'orders*' --to /archive
    topics archive --path /var/lib/topics --to /archive --format delta
    """
    from topics.spark.jobs.archive import ArchiveOptions
    from topics.spark.jobs.archive import archive as run
    from topics.spark.jobs.job import JobSource

    options = ArchiveOptions(
        source=JobSource(path=path, cold_path=cold_path, url=url, api_key_file=api_key_file, topics=topics),
        to=to,
        format=format_,
        available_now=available_now,
        every=every,
        trim=trim,
        on_loss=on_loss,
    )
    with (
        resumable(),
        spark_session("archive", master, conf, check=options.check) as spark,
        progress(as_json=as_json) as reporter,
        interruptible() as interrupted,
    ):
        done = run(spark, options, reporter=reporter, should_stop=interrupted)
    if as_json:
        click.echo(msgspec.json.encode(asdict(done)).decode())
    else:
        trimmed = ", topics trimmed" if done.trimmed else ""
        click.echo(
            f"{done.records:,} records in {done.files:,} files, {done.bytes:,} bytes, {done.elapsed_s:.1f} s{trimmed}"
        )
    if interrupted() and available_now:
        click.echo("interrupted before the end; start it again to go on", err=True)
        sys.exit(EXIT_INTERRUPTED)
