"""`topics verify`: every frame of a data directory, checked."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
import msgspec

from topics.cli.spark_job import job_options, progress, resumable, spark_session

if TYPE_CHECKING:
    from topics.spark.jobs.verify import Report


@click.command()
@click.option("--path", required=True, metavar="DIR", help="A data directory, a cold directory, or a copy of either.")
@click.option("--cold", "cold_path", metavar="DIR", envvar="TOPICS_COLD_DIR", help="Cold root to check with it.")
@job_options
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
    """
    from topics.spark.directory import layout
    from topics.spark.files import open_files
    from topics.spark.jobs.verify import verify as run

    with (
        resumable(),
        spark_session("verify", master, conf, check=lambda: layout(open_files(path))) as spark,
        progress(as_json=as_json) as reporter,
    ):
        report = run(spark, path=path, cold_path=cold_path, reporter=reporter, state_dir=state_dir)
    write_json(report) if as_json else write_table(report)
    sys.exit(0 if report.ok else 1)


def write_json(report: Report) -> None:
    click.echo(msgspec.json.encode({"ok": report.ok, **asdict(report)}).decode())


def write_table(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if report.findings:
        table = Table("topic", "seqs", "problem", "tier", "offset", "file", box=None)
        for found in report.findings:
            seqs = f"{found.from_seq}..{found.to_seq}"
            table.add_row(found.topic, seqs, found.problem, found.tier, str(found.offset), found.file)
        console.print(table)
    verdict = "no damage" if report.ok else f"{len(report.findings)} findings"
    console.print(
        f"{report.topics} topics, {report.segments} segments, {report.frames:,} frames, "
        f"{report.bytes:,} bytes in {report.elapsed_s:.1f} s: {verdict}",
        highlight=False,
    )
