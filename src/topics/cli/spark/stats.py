"""`topics stats`: how much there is of what, and when it came."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import msgspec

from topics.cli.remote import show_rows
from topics.cli.spark.spark_job import local_job_options, progress, resumable, session_if_asked, source_options

if TYPE_CHECKING:
    from topics.spark.jobs.stats import StatsRow

COLUMNS = ("topic", "from", "tag", "records", "bytes", "records/s")


@click.command()
@source_options
@click.option("--bucket", default="1h", show_default=True, metavar="TIME", help="Time bucket, such as 30s, 15m, 1d.")
@click.option("--tag-delimiter", default=":", show_default=True, help="A tag's prefix ends here.")
@local_job_options
def stats(
    *,
    path: str | None,
    cold_path: str | None,
    url: str | None,
    api_key_file: str | None,
    topics: str,
    bucket: str,
    tag_delimiter: str,
    master: str | None,
    conf: tuple[str, ...],
    state_dir: str | None,
    as_json: bool,
) -> None:
    """Records, bytes and rates by topic, time bucket and tag prefix.

    \b
    topics stats --path /var/lib/topics --bucket 15m
    topics stats --url http://localhost:4000 --topic 'orders*' --json
    """
    from topics.client.arrow_pages import needs_pyarrow
    from topics.spark.jobs.job import JobSource
    from topics.spark.jobs.stats import bucket_seconds
    from topics.spark.jobs.stats import stats as run
    from topics.spark.planning.cut import LossWarning

    bucket_seconds(bucket)
    needs_pyarrow("topics stats")
    warnings.simplefilter("ignore", LossWarning)  # it is logged too
    source = JobSource(path=path, cold_path=cold_path, url=url, api_key_file=api_key_file, topics=topics)
    with (
        resumable(),
        session_if_asked("stats", master, conf, check=source.cuts) as spark,
        progress(as_json=as_json) as reporter,
    ):
        rows = run(spark, source, bucket=bucket, tag_delimiter=tag_delimiter, reporter=reporter, state_dir=state_dir)
    if as_json:
        for row in rows:
            click.echo(msgspec.json.encode(asdict(row)).decode())
    else:
        write_table(rows)


def write_table(rows: list[StatsRow]) -> None:
    """A table on a terminal, tab-separated lines in a pipe."""
    show_rows(COLUMNS, map(_cells, rows), as_json=False)


def _cells(row: StatsRow) -> tuple[str | int | None, ...]:
    begin = datetime.fromtimestamp(row.bucket_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return row.topic, begin, row.tag_prefix, row.records, row.bytes, f"{row.per_s:.2f}"
