"""`topics verify`: every frame of a data directory, checked."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
import msgspec

from topics.cli.remote import show_rows
from topics.cli.spark.spark_job import local_job_options, progress, resumable, session_if_asked

if TYPE_CHECKING:
    from topics.spark.jobs.verify import Report

COLUMNS = ("topic", "seqs", "problem", "tier", "offset", "file")


@click.command()
@click.option("--path", required=True, metavar="DIR", help="A data directory, a cold directory, or a copy of either.")
@click.option("--cold", "cold_path", metavar="DIR", envvar="TOPICS_COLD_DIR", help="Cold root to check with it.")
@local_job_options
def verify(
    *,
    path: str,
    cold_path: str | None,
    master: str | None,
    conf: tuple[str, ...],
    state_dir: str | None,
    as_json: bool,
) -> None:
    """Check every frame of every segment; exit status 1 if any is damaged.

    \b
    topics verify --path /var/lib/topics
    topics verify --path /var/lib/topics --cold s3://bucket/topics --json
    topics verify --path s3://bucket/copy --master spark://host:7077
    """
    from topics.spark.jobs.verify import verify as run
    from topics.spark.logs.directory import layout
    from topics.spark.logs.read_files import open_files

    with (
        resumable(),
        session_if_asked("verify", master, conf, check=lambda: layout(open_files(path))) as spark,
        progress(as_json=as_json) as reporter,
    ):
        report = run(spark, path=path, cold_path=cold_path, reporter=reporter, state_dir=state_dir)
    write_json(report) if as_json else write_table(report)
    sys.exit(0 if report.ok else 1)


def write_json(report: Report) -> None:
    click.echo(msgspec.json.encode({"ok": report.ok, **asdict(report)}).decode())


def write_table(report: Report) -> None:
    """A table on a terminal, tab-separated lines in a pipe."""
    if report.findings:
        rows = [(f.topic, f"{f.from_seq}..{f.to_seq}", f.problem, f.tier, f.offset, f.file) for f in report.findings]
        show_rows(COLUMNS, rows, as_json=False)
    verdict = "no damage" if report.ok else f"{len(report.findings)} findings"
    click.echo(
        f"{report.topics} topics, {report.segments} segments, {report.frames:,} frames, "
        f"{report.bytes:,} bytes in {report.elapsed_s:.1f} s: {verdict}"
    )
