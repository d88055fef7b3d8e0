"""Jobs on Spark, against a real server."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.served import QUICK_JAVA, ROOT, Served, run_cli
from tests.spark.world import World

from topics.cli.spark.spark_job import interruptible
from topics.errors import ConfigError
from topics.spark.jobs.archive import STARTS_MAX, TOO_SLOW, ArchiveOptions, _Archive, archive
from topics.spark.jobs.archive_files import committed_by_spark, manifest
from topics.spark.jobs.job import JobSource, Reporter, failure_of
from topics.spark.jobs.replay import ReplayOptions, _load, replay
from topics.spark.jobs.stats import stats
from topics.spark.jobs.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
PATIENCE_S = 120
"""Far beyond what a step takes; a busy machine fails no test."""


@pytest.mark.parametrize("format_", ["parquet", "delta"])
def test_an_archive_grows_exactly_once_and_comes_back(
    spark: SparkSession, served: Served, tmp_path: Path, format_: Any
) -> None:
    topics = [f"{format_}:a", f"{format_}:b"]
    for topic in topics:
        served.write(topic, *({"n": n} for n in range(300)), tag="t", meta={"m": 1})
    options = ArchiveOptions(
        source=JobSource(url=served.url, topics=f"{format_}:*"), to=str(tmp_path / "archive"), format=format_
    )
    assert archive(spark, options).records == 600
    served.write(topics[0], *range(50))
    again = archive(spark, options)
    assert again.records == 50
    assert archive(spark, options).records == 0
    files = manifest(tmp_path / "archive")
    assert sum(file.records for file in files.values()) == 650
    assert {file.topic for file in files.values()} == set(topics)
    assert len(files) <= 8
    (tmp_path / "archive" / f"topic={format_}%3Aa" / "left-over.parquet").write_bytes(b"no parquet")

    back = ReplayOptions(
        source=str(tmp_path / "archive"), format=format_, url=served.url, topics=topics[0], into=f"{format_}-back"
    )
    done = replay(spark, back, state_dir=str(tmp_path / "state"))
    assert done.records == 350
    assert [row[2:] for row in served.rows(f"{format_}-back")] == [row[2:] for row in served.rows(topics[0])]


def test_trim_deletes_what_is_archived_and_nothing_else(spark: SparkSession, served: Served, tmp_path: Path) -> None:
    served.write("trimmed", *range(120))
    options = ArchiveOptions(source=JobSource(url=served.url, topics="trimmed"), to=str(tmp_path), trim=True)
    assert archive(spark, options).trimmed
    assert served.rows("trimmed") == []
    served.write("trimmed", "new")
    assert archive(spark, options).records == 1
    assert spark.read.parquet(str(tmp_path)).where("topic = 'trimmed'").count() == 121


class Shown(Reporter):
    """A reporter that remembers the last `(done, total)`."""

    def start(self, what: str, total: int | None, unit: str) -> None:
        self.last = (0, total)

    def advance(self, done: int, *, rows: int = 0, total: int | None = None) -> None:
        self.last = (done, self.last[1] if total is None else total)

    def note(self, text: str) -> None: ...


def test_the_progress_of_an_archive_ends_at_its_end(spark: SparkSession, served: Served, tmp_path: Path) -> None:
    """Deleted records are passed, too, and what was archived before is no part of it."""
    options = ArchiveOptions(source=JobSource(url=served.url, topics="shown"), to=str(tmp_path))
    shown = Shown()
    for count in (100, 40):
        served.write("shown", *range(count // 2), tag="kept")
        served.write("shown", *range(count // 2), tag="dropped")
        served.delete("shown", match="dropped")
        assert archive(spark, options, reporter=shown).records == count // 2
        assert shown.last == (count, count)


def test_a_replay_that_is_run_again_appends_nothing_twice(spark: SparkSession, served: Served, tmp_path: Path) -> None:
    served.write("runs", *range(100))
    source = ArchiveOptions(source=JobSource(url=served.url, topics="runs"), to=str(tmp_path / "archive"))
    archive(spark, source)
    options, state = ReplayOptions(source=source.to, url=served.url, into="run"), str(tmp_path / "state")
    assert replay(spark, options, state_dir=state).records == 100
    again = replay(spark, options, state_dir=state)
    assert (again.records, again.records_before) == (0, 100)
    served.write("runs", *range(100, 130))
    archive(spark, source)
    assert replay(spark, options, state_dir=state).records == 30
    assert [row[4] for row in served.rows("run")] == list(range(130))
    assert replay(spark, options, state_dir=state, again=True).records == 130
    assert len(served.rows("run")) == 260
    served.drop("run")
    with pytest.raises(ConfigError, match="--again writes everything once more"):
        replay(spark, options, state_dir=state)
    assert replay(spark, options, state_dir=state, again=True).records == 130
    assert len(served.rows("run")) == 130


def test_a_replay_that_was_interrupted_appends_nothing_twice(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    rows = [("r", 1, n, str(n)) for n in range(500)]
    df = spark.createDataFrame(rows, "topic string, epoch long, seq long, data string")
    df.repartition(3).write.parquet(str(tmp_path / "rows"))
    options = ReplayOptions(source=str(tmp_path / "rows"), url=served.url)
    for _ in range(2):
        done = replay(spark, options, state_dir=str(tmp_path / "state"))
        assert done.waves_done_before == 0
        assert [row[4] for row in served.rows("r")] == list(range(500))
        forget_waves(tmp_path / "state")


def forget_waves(state: Path) -> None:
    """The ledger as a kill between the last write and its line leaves it."""
    (ledger,) = state.glob("*")
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(line for line in lines if '"wave 0"' not in line))


def test_a_topic_named_like_a_number_comes_back_under_its_name(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"epoch": [1, 1], "seq": [1, 2], "data": ["1", "2"]})
    files = [f"topic={topic}/date=2026-01-31/part-0.parquet" for topic in ("007", "1e5")]
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True)
        pq.write_table(table, tmp_path / file)
    options = ReplayOptions(source=str(tmp_path), url="http://localhost:1")

    def topics(wanted: list[str]) -> set[str]:
        return {row.topic for row in _load(spark, options, wanted).select("topic").distinct().collect()}

    assert topics(files[:1]) == {"007"}
    assert topics(files) == topics([]) == {"007", "1e5"}


def test_a_replay_that_goes_on_with_more_cores_appends_nothing_twice(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    rows = [(f"cores-{n % 3}", n, f'"{random.Random(n).randbytes(2000).hex()}"') for n in range(1500)]
    spark.createDataFrame(rows, "topic string, seq long, data string").write.parquet(str(tmp_path / "rows"))
    options = ReplayOptions(source=str(tmp_path / "rows"), url=served.url)
    state, key = tmp_path / "state", "spark.sql.adaptive.coalescePartitions.minPartitionNum"

    def run(cores: str) -> None:
        spark.conf.set(key, cores)
        try:
            replay(spark, options, state_dir=str(state))
        finally:
            spark.conf.unset(key)
        forget_waves(state)

    run("1")
    run("4")
    assert sum(len(served.rows(f"cores-{n}")) for n in range(3)) == 1500


def test_verify_finds_damage_and_goes_on_after_an_interruption(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from topics.spark.jobs import verify as verify_job

    world = World(tmp_path)
    world.write("v", *range(300))
    world.sim.checkpoint()
    world.stop()
    files = sorted(Path(world.data_dir, "topics").glob("*/*.data"))
    raw = bytearray(files[4].read_bytes())
    raw[100] ^= 1
    files[4].write_bytes(raw)
    monkeypatch.setattr(verify_job, "SEGMENTS_PER_WAVE", 5)
    waves = iter(range(100))

    class Interrupted(Reporter):
        def start(self, what: str, total: int | None, unit: str) -> None: ...

        def advance(self, done: int, *, rows: int = 0, total: int | None = None) -> None:
            if next(waves) == 1:
                raise KeyboardInterrupt

        def note(self, text: str) -> None: ...

    state = str(tmp_path / "state")
    with pytest.raises(KeyboardInterrupt):
        verify(spark, path=world.data_dir, reporter=Interrupted(), state_dir=state)
    told: list[str] = []
    monkeypatch.setattr("topics.spark.jobs.job.Reporter.note", lambda self, text: told.append(text))
    report = verify(spark, path=world.data_dir, state_dir=state)
    assert told == ["going on: 10 of 15 segments were checked before"]
    assert not report.ok
    assert (report.segments, report.frames) == (15, 299)
    (found,) = report.findings
    assert (found.topic, found.from_seq, found.file) == ("v", 83, str(files[4]))


def test_stats_count_by_topic_tag_and_time(spark: SparkSession, tmp_path: Path) -> None:
    world = World(tmp_path)
    for tag in ("eu:1", "eu:2", "us:1"):
        world.write("s", *["xx"] * 10, tag=tag)
        world.clock.advance(60_000)
    world.write("other", 1)
    rows = stats(spark, JobSource(path=world.data_dir), bucket="1m", state_dir=str(tmp_path / "state"))
    found = [(row.topic, row.tag_prefix, row.records, row.bytes) for row in rows]
    assert found == [("other", None, 1, 1), ("s", "eu", 10, 40), ("s", "eu", 10, 40), ("s", "us", 10, 40)]
    assert rows[1].bucket_ms % 60_000 == 0
    assert rows[2].bucket_ms - rows[1].bucket_ms == 60_000


def test_the_verb_exits_with_1_where_there_is_damage(tmp_path: Path) -> None:
    import json

    world = World(tmp_path)
    world.write("v", *range(30))
    world.sim.checkpoint()
    world.stop()
    damaged = min(Path(world.data_dir, "topics").glob("*/*.data"))
    raw = bytearray(damaged.read_bytes())
    raw[60] ^= 1
    damaged.write_bytes(raw)
    state = str(tmp_path / "state")
    arguments = ("--path", world.data_dir, "--json", "--master", "local[1]", "--state", state)
    done = run_cli("verify", *arguments, JAVA_TOOL_OPTIONS=QUICK_JAVA)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert (report["ok"], report["frames"], len(report["findings"])) == (False, 29, 1)
    assert " WARN " not in done.stderr


def test_a_wrong_word_is_told_before_spark_starts(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.write("a", 1)
    world.stop()
    data, out = ("--path", world.data_dir), str(tmp_path / "out")
    for verb, sentence in (
        (("verify", "--path", str(tmp_path)), "is no data directory"),
        (("stats", *data, "--bucket", "soon"), "such as 15m, not 'soon'"),
        (("stats", *data, "--url", "http://localhost:1"), "give exactly one of --path"),
        (("archive", *data, "--to", out, "--topic", "b"), "there is no topic 'b'"),
        (("archive", *data, "--to", out, "--trim"), "--trim deletes through a server"),
        (("replay", "--from", out, "--to-url", "http://localhost:1"), f"there is no archive at {out}"),
    ):
        done = run_cli(*verb, SPARK_HOME="/nowhere")
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1
    assert not Path(out).exists()


@pytest.mark.parametrize(
    ("master", "sentence"), [("nonsense", "Master must either be yarn"), ("local[zero]", "Could not parse Master URL")]
)
def test_a_wrong_master_is_told_in_one_sentence(tmp_path: Path, master: str, sentence: str) -> None:
    world = World(tmp_path)
    world.write("a", 1)
    world.stop()
    done = run_cli("stats", "--path", world.data_dir, "--master", master, JAVA_TOOL_OPTIONS="")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"topics: Spark failed: {sentence}")
    assert done.stderr.count("\n") == 1


def test_an_archive_that_goes_on_behind_a_loss_says_so(tmp_path: Path) -> None:
    world = World(tmp_path)
    arguments = ("--path", world.data_dir, "--to", str(tmp_path / "archive"), "--master", "local[1]")
    for _ in range(2):
        world.write("a", *range(100))
        world.sim.checkpoint()
        done = run_cli("archive", *arguments, "--on-loss", "warn", JAVA_TOOL_OPTIONS=QUICK_JAVA)
        assert done.returncode == 0, done.stderr
        world.put("a", cap_records=10)
    assert "records 101..190 of topic 'a' are lost (cap); reading goes on" in done.stderr
    assert "WARNING" not in done.stderr


def test_a_continuous_archive_trims_as_it_goes_and_stops_when_it_is_told(
    spark: SparkSession, served: Served, tmp_path: Path
) -> None:
    served.put("going", cap_records=100)
    served.write("going", *range(80))
    source = JobSource(url=served.url, topics="going")
    options = ArchiveOptions(source=source, to=str(tmp_path), available_now=False, every="1 second", trim=True)
    done = archive(spark, options, should_stop=lambda: not served.rows("going"))
    assert (done.records, done.trimmed) == (80, True)
    served.write("going", *range(300))
    with pytest.raises(Exception) as caught:
        archive(spark, replace(options, available_now=True))
    assert str(failure_of(caught.value)) == "records 81..280 of topic 'going' are lost (cap)"


class NeverUp:
    """A query whose planner did not come up in time."""

    def awaitTermination(self, timeout: int) -> bool:
        from pyspark.errors import StreamingQueryException

        raise StreamingQueryException(f"[STREAM_FAILED] terminated with exception: {TOO_SLOW}. SQLSTATE: XXKST")

    def stop(self) -> None:
        pass


@pytest.mark.parametrize(("slow", "archives"), [(STARTS_MAX - 1, True), (STARTS_MAX, False)])
def test_an_archive_starts_again_where_its_planner_was_too_slow(
    spark: SparkSession, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: int, archives: bool
) -> None:
    served.put("slow")
    if not served.rows("slow"):
        served.write("slow", *range(10))
    start, queries = _Archive._start, [NeverUp()] * slow
    monkeypatch.setattr(_Archive, "_start", lambda job: queries.pop() if queries else start(job))
    options = ArchiveOptions(source=JobSource(url=served.url, topics="slow"), to=str(tmp_path))
    with nullcontext() if archives else pytest.raises(Exception, match=TOO_SLOW):
        assert archive(spark, options).records == 10


def test_signals_tell_a_job_to_end_and_a_second_one_ends_it() -> None:
    with interruptible() as told:
        assert not told()
        os.kill(os.getpid(), signal.SIGTERM)
        assert told()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.fixture
def continuous(served: Served, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`topics archive --continuous` of 80 records, in a process group of its own, as a terminal runs it."""
    served.put("running")
    if not served.rows("running"):
        served.write("running", *range(80))
    command = [sys.executable, "-m", "topics.cli", "archive", "--url", served.url, "--topic", "running"]
    command += ["--to", str(tmp_path / "archive"), "--master", "local[1]", "--continuous", "--every", "1 second"]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAVA_TOOL_OPTIONS": QUICK_JAVA},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # who runs us in the background made us deaf
    )
    yield process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def java_starts(process: subprocess.Popen[str]) -> bool:
    """Whether the Java of a session, not one that is asked for its version, has been started."""
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        with suppress(FileNotFoundError):
            if b"pyspark-shell" in Path(f"/proc/{child}/cmdline").read_bytes():
                return True
    return False


def test_ctrl_c_ends_a_continuous_archive_in_good_order(
    continuous: subprocess.Popen[str], served: Served, tmp_path: Path
) -> None:
    folder = tmp_path / "archive"
    wait_until(lambda: bool(manifest(folder)), continuous)
    os.killpg(continuous.pid, signal.SIGINT)
    out, err = continuous.communicate(timeout=PATIENCE_S)  # until Java, which shares the pipes, is gone too
    assert continuous.returncode == 0, err
    assert out.startswith("80 records in ")  # one file, or two if a checkpoint ran while they were written
    assert sum(file.records for file in manifest(folder).values()) == 80
    assert set(manifest(folder)) == set(committed_by_spark(folder))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the Java process through /proc")
def test_ctrl_c_while_java_starts_leaves_no_java_behind(continuous: subprocess.Popen[str], tmp_path: Path) -> None:
    wait_until(lambda: java_starts(continuous), continuous)
    os.killpg(continuous.pid, signal.SIGINT)
    out, err = continuous.communicate(timeout=PATIENCE_S)
    assert (continuous.returncode, out) == (130, "")
    assert err.endswith("interrupted; start it again to go on\n")
    assert "Exception" not in err
    assert not (tmp_path / "archive").exists()
