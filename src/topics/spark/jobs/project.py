"""The pipeline project that `topics pipeline init` writes: a starting point which its user edits, not a framework.

Bronze is the raw topics as a streaming table, silver the typed and deduplicated events with the malformed ones kept
apart, gold a few aggregates in SQL. It runs with Spark's own `spark-pipelines`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from topics.errors import ConfigError
from topics.spark.jobs.job import JobFailed, failure_of
from topics.spark.logs.log import open_log
from topics.spark.options import read_options
from topics.spark.planning.batch import address_of, wanted_cuts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPEC: Final = "spark-pipeline.yml"
TOKEN_ENV: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
OPTION_PREFIX: Final = "spark.topics."
STORAGE: Final = "storage"

_SPEC: Final = """\
# A Spark declarative pipeline over topics. Run it with: topics pipeline run .
name: {name}
storage: {storage}
libraries:
  - glob:
      include: transformations/**
configuration:
{configuration}
  # What a gap does: fail (default), warn, or rows.
  spark.topics.onDataLoss: "warn"
  spark.sql.session.timeZone: "UTC"
  spark.sql.shuffle.partitions: "4"
"""

_BRONZE: Final = '''\
"""Bronze: the topics as they are, one row per record, nothing parsed and nothing dropped."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame


@dp.table(comment="Every record of the subscribed topics, as stored")
def bronze() -> DataFrame:
    keys = ("path", "coldPath", "url", "apiKeyFile", "subscribe", "subscribePattern", "subscribePrefix", "onDataLoss")
    given = {key: spark.conf.get(f"spark.topics.{key}", None) for key in keys}  # noqa: F821
    options = {key: value for key, value in given.items() if value}
    return (
        spark.readStream.format("topics")  # noqa: F821
        .options(startingOffsets="earliest", **options)
        .load()
    )
'''

_SILVER: Final = """\
-- Silver: typed events, each (topic, epoch, seq) once. Edit the schema to your own payload; what does not fit it goes
-- to quarantine. Plain SQL, because Spark analyses a DataFrame's deduplication before bronze exists.
CREATE MATERIALIZED VIEW silver AS
SELECT
  topic,
  epoch,
  seq,
  any_value(ts) AS ts,
  any_value(node) AS node,
  any_value(tag) AS tag,
  any_value(event.type) AS type,
  any_value(event.user) AS user,
  any_value(coalesce(event.amount, event.duration_ms)) AS value
FROM (
  SELECT *, from_json(
    data,
    'type STRING, user STRING, amount DOUBLE, duration_ms DOUBLE, malformed STRING',
    map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', 'malformed')
  ) AS event
  FROM bronze
) AS parsed
WHERE event IS NOT NULL AND event.malformed IS NULL
GROUP BY topic, epoch, seq
"""

_QUARANTINE: Final = """\
-- Records whose payload is not the expected event, with the text they came as. Keep the schema as in silver.
CREATE MATERIALIZED VIEW quarantine AS
SELECT topic, epoch, seq, any_value(ts) AS ts, any_value(tag) AS tag, any_value(data) AS data
FROM (
  SELECT *, from_json(
    data,
    'type STRING, user STRING, amount DOUBLE, duration_ms DOUBLE, malformed STRING',
    map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', 'malformed')
  ) AS event
  FROM bronze
) AS parsed
WHERE event IS NULL OR event.malformed IS NOT NULL
GROUP BY topic, epoch, seq
"""

_GOLD_WINDOWS: Final = """\
-- Gold: how many events, and how large, by topic, tag and minute.
CREATE MATERIALIZED VIEW gold_by_minute AS
SELECT
  topic,
  coalesce(tag, '-') AS tag,
  window.start AS minute,
  count(*) AS events,
  count(DISTINCT user) AS users,
  percentile_approx(value, 0.5) AS p50,
  percentile_approx(value, 0.95) AS p95,
  percentile_approx(value, 0.99) AS p99
FROM silver
GROUP BY topic, coalesce(tag, '-'), window(ts, '1 minute')
"""

_GOLD_TOPICS: Final = """\
-- Gold: what there is of each topic, and how much of it did not fit.
CREATE MATERIALIZED VIEW gold_topics AS
SELECT
  all_records.topic,
  all_records.records,
  coalesce(bad.records, 0) AS malformed,
  all_records.first_ts,
  all_records.last_ts
FROM (
  SELECT topic, count(*) AS records, min(ts) AS first_ts, max(ts) AS last_ts FROM bronze GROUP BY topic
) AS all_records
LEFT JOIN (SELECT topic, count(*) AS records FROM quarantine GROUP BY topic) AS bad ON all_records.topic = bad.topic
"""

FILES: Final = {
    "transformations/bronze.py": _BRONZE,
    "transformations/silver.sql": _SILVER,
    "transformations/quarantine.sql": _QUARANTINE,
    "transformations/gold_by_minute.sql": _GOLD_WINDOWS,
    "transformations/gold_topics.sql": _GOLD_TOPICS,
    ".gitignore": "storage/\nwarehouse/\nmetastore/\n.spark/\n*.log\n",
}
GOLD_TABLES: Final = ("gold_topics", "gold_by_minute")


def write_project(folder: Path, source: Mapping[str, str]) -> None:
    """A new project; `source` holds options of the `topics` source. An existing project is left alone."""
    if (folder / SPEC).exists():
        raise ConfigError(f"there is a pipeline in {folder} already")
    whole = folder.resolve()
    if set("#;") & set(str(whole)):
        raise ConfigError(f"Spark keeps no tables in a folder with # or ; in its path: {whole}")
    (folder / "transformations").mkdir(parents=True, exist_ok=True)
    lines = "\n".join(f"  {OPTION_PREFIX}{name}: {_yaml(value)}" for name, value in source.items())
    spec = _SPEC.format(name=_yaml(whole.name), storage=_yaml(f"file://{whole}/{STORAGE}"), configuration=lines)
    (folder / SPEC).write_text(spec, encoding="utf-8")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")


def _yaml(text: str) -> str:
    """A text as YAML, whatever is in it: a JSON string is a YAML string."""
    return json.dumps(text, ensure_ascii=False)


def check_source(folder: Path) -> None:
    """Raises the error that the pipeline would end with if the source that its spec names cannot be read: Spark reports
    it a minute later, among pages of other output. A project whose spec names none brings its own source."""
    import yaml  # type: ignore[import-untyped]  # comes with Spark's pipelines

    spec = yaml.safe_load((folder / SPEC).read_text(encoding="utf-8"))
    named = spec.get("configuration") if isinstance(spec, dict) else None
    options = {
        name.removeprefix(OPTION_PREFIX): str(value)
        for name, value in (named or {}).items()
        if name.startswith(OPTION_PREFIX)
    }
    if not options:
        return
    if "://" not in options.get("path", "://"):
        options["path"] = str(folder / options["path"])
    wanted = read_options(options, streaming=True)
    with closing(open_log(address_of(wanted))) as log:
        if (folder / STORAGE).exists():  # it ran before: a missing topic is for `onDataLoss` to judge
            log.names()
        else:
            wanted_cuts(log, wanted)


def settings_of(folder: Path) -> dict[str, str]:
    """Spark's settings for a run: tables lie beside the project and stay; the Connect server that Spark's runner needs
    is for this machine alone, on a free port, so that many pipelines run side by side."""
    whole = folder.resolve()
    return {
        "spark.sql.warehouse.dir": f"{whole}/warehouse",
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={whole}/metastore;create=true",
        "spark.driver.extraJavaOptions": f'"-Dderby.stream.error.file={whole}/derby.log"',
        "spark.ui.enabled": "false",
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.sql.artifact.isolation.enabled": "true",
        "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    }


def use_new_token() -> None:
    """Whoever talks to the Connect server of this process needs a token; processes that it starts inherit it."""
    os.environ[TOKEN_ENV] = secrets.token_urlsafe(24)


def connect_address(spark: SparkSession) -> str:
    """Where the Connect server of a session listens."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    service = getattr(getattr(jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
    return f"sc://localhost:{service.localPort()}"


def check_pipelines() -> None:
    if importlib.util.find_spec("pyspark.pipelines") is None:
        raise ConfigError("declarative pipelines need PySpark 4.1 or newer: pip install 'topicsdb[spark]'")


def run_command(folder: Path, arguments: list[str]) -> list[str]:
    """The call of Spark's own runner, as a client of a Connect server."""
    import pyspark

    runner = str(Path(pyspark.__file__).parent / "pipelines" / "cli.py")
    return [sys.executable, runner, "run", "--spec", str(folder.resolve() / SPEC), *arguments]


_EVENT: Final = re.compile(r"\d{4}-\d\d-\d\d")


def run_client(command: list[str], folder: Path, remote: str, tell: Callable[[str], None]) -> None:
    """Runs the client to its end. What it says of flows and tables goes to `tell`, line by line. Raises JobFailed or
    ConfigError with the one sentence behind a failure."""
    environment = {**os.environ, "SPARK_REMOTE": remote, "SPARK_CONNECT_MODE_ENABLED": "1", "PYTHONUNBUFFERED": "1"}
    told: list[str] = []
    with subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as client:
        assert client.stdout is not None
        for line in client.stdout:
            told.append(line)
            if _EVENT.match(line):
                tell(line.rstrip())
    if client.returncode:
        raise failure_of(JobFailed("".join(told)))
