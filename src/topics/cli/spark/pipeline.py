"""`topics pipeline`: a declarative pipeline over topics, run by Spark itself."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from topics.cli.spark.spark_job import source_options, spark_session
from topics.errors import ConfigError


@click.group()
def pipeline() -> None:
    """Bronze, silver and gold tables from topics.

    \b
    topics pipeline init shop --url http://localhost:4000 --topic 'orders*'
    topics pipeline run shop
    """


@pipeline.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@source_options
def init(
    *, folder: Path, path: str | None, cold_path: str | None, url: str | None, api_key_file: str | None, topics: str
) -> None:
    """Write a small project into DIR: edit it, it is yours.

    \b
    topics pipeline init shop --url http://localhost:4000 --topic 'orders*'
    """
    from topics.spark.jobs.job import topic_option
    from topics.spark.jobs.project import write_project
    from topics.spark.options import read_options

    if path is not None and url is not None:
        raise ConfigError("give one of --path (a data directory) and --url (a running server)")
    given = {
        "path": _whole(path),
        "coldPath": _whole(cold_path),
        "url": url if path is None and url is not None else None if path is not None else "http://localhost:4000",
        "apiKeyFile": _whole(api_key_file),
        **topic_option(topics),
    }
    source = {name: value for name, value in given.items() if value is not None}
    read_options(source, streaming=True)
    write_project(folder, source)
    click.echo(f"wrote {folder}; run it with: topics pipeline run {shlex.quote(str(folder))}", err=True)


def _whole(path: str | None) -> str | None:
    """A path as it is from everywhere: the pipeline runs in its own folder."""
    return str(Path(path).resolve()) if path is not None and "://" not in path else path


@pipeline.command(context_settings={"ignore_unknown_options": True})
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--master", metavar="URL", help="local[N], or a Spark Connect server such as sc://host:15002.")
@click.option("--conf", "conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; may be repeated.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(*, folder: Path, master: str | None, conf: tuple[str, ...], arguments: tuple[str, ...]) -> None:
    """Run the pipeline in DIR with spark-pipelines; more arguments go to it.

    \b
    topics pipeline run shop
    topics pipeline run shop --full-refresh-all
    """
    from topics.spark.jobs import project
    from topics.spark.start import check_ready

    check_ready()
    project.check_pipelines()
    if not (folder / project.SPEC).is_file():
        raise ConfigError(f"there is no {project.SPEC} in {folder}: topics pipeline init {folder}")
    command = project.run_command(folder, list(arguments))

    def tell(line: str) -> None:
        click.echo(line, err=True)

    if master is not None and master.startswith("sc://"):
        project.check_source(folder)
        project.run_client(command, folder, master, tell)
        return
    project.use_new_token()
    settings = project.settings_of(folder)
    with spark_session(
        "pipeline", master, conf, check=lambda: project.check_source(folder), settings=settings
    ) as spark:
        project.run_client(command, folder, project.connect_address(spark), tell)
