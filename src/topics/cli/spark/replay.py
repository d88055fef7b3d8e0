"""`topics replay`: an archive back into topics."""

from __future__ import annotations

from dataclasses import asdict

import click
import msgspec

from topics.cli.spark.spark_job import job_options, progress, resumable, spark_session


@click.command()
@click.option("--from", "source", required=True, metavar="DIR", help="An archive, or what the format reads.")
@click.option("--format", "format_", default="parquet", show_default=True, help="parquet, delta, or a Spark format.")
@click.option("--to-url", "url", required=True, metavar="URL", help="Server to write to.")
@click.option("--api-key-file", metavar="FILE", help="File with the key; else TOPICS_API_KEY.")
@click.option("--topic", "topics", default="*", show_default=True, help="Names with commas, or prefix*.")
@click.option("--into", metavar="TOPIC", help="Write everything into this topic.")
@click.option("--durability", help="Class of topics that are created.")
@click.option("--again", is_flag=True, help="Write once more what an earlier run has written.")
@job_options
def replay(
    *,
    source: str,
    format_: str,
    url: str,
    api_key_file: str | None,
    topics: str,
    into: str | None,
    durability: str | None,
    again: bool,
    master: str | None,
    conf: tuple[str, ...],
    state_dir: str | None,
    as_json: bool,
) -> None:
    """Write archived records into topics, each topic in its old order.

    What an earlier run has written is not written again, so a second run writes what the archive got since.

    \b
    topics replay --from /archive --to-url http://localhost:4000 --topic 'orders*'
    topics replay --from /archive --to-url http://localhost:4000 --topic orders --into orders-again
    """
    from topics.spark.jobs.replay import ReplayOptions, ReplayPlan
    from topics.spark.jobs.replay import replay as run

    options = ReplayOptions(
        source=source,
        format=format_,
        url=url,
        api_key_file=api_key_file,
        topics=topics,
        into=into,
        durability=durability,
    )

    def check() -> None:
        options.check()
        ReplayPlan.of(options, state_dir=state_dir, again=again)

    with (
        resumable(),
        spark_session("replay", master, conf, check=check) as spark,
        progress(as_json=as_json) as reporter,
    ):
        done = run(spark, options, reporter=reporter, state_dir=state_dir)
    if as_json:
        click.echo(msgspec.json.encode(asdict(done)).decode())
    else:
        before = f"; {done.records_before:,} were written before (--again writes them once more)"
        click.echo(
            f"{done.records:,} records in {done.waves - done.waves_done_before:,} waves, {done.elapsed_s:.1f} s"
            f"{before if done.waves_done_before else ''}"
        )
