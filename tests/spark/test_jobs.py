"""Jobs without Spark: what a segment check finds, what a ledger remembers, what a manifest vouches for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from tests.spark.world import World

from topics.cli.spark.pipeline import pipeline
from topics.cli.spark.spark_job import spark_session
from topics.cli.spark.stats import stats, write_table
from topics.cli.spark.verify import verify
from topics.errors import ConfigError, TopicsError
from topics.formats.segments import scan_segment
from topics.spark.jobs import archive as archive_job
from topics.spark.jobs import archive_files as delta_job
from topics.spark.jobs import replay as replay_job
from topics.spark.jobs import stats as stats_job
from topics.spark.jobs import verify as verify_job
from topics.spark.jobs.archive import ArchiveOptions, _Archive, instance_of
from topics.spark.jobs.archive_files import (
    ArchivedFile,
    add_to_manifest,
    check_folder,
    committed_by_spark,
    committed_offset,
    described,
    locked,
    manifest,
    note_instance,
    orphans,
    topic_of,
)
from topics.spark.jobs.job import JobFailed, JobSource, Ledger, Reporter, describe, failure_of, ledger_path, place_of
from topics.spark.jobs.project import SPEC, check_source, run_client, run_command, settings_of, write_project
from topics.spark.jobs.replay import ReplayOptions, ReplayPlan, plan_waves
from topics.spark.jobs.stats import StatsRow, bucket_seconds, state_of, still_holds
from topics.spark.jobs.verify import SegmentToCheck, VerifyFinding, between, check_segment, plan_verify
from topics.spark.logs.directory import look_at


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    for n in range(70):
        made.write("a", {"n": n}, tag="t")
    made.sim.checkpoint()
    made.delete("a", match="nothing")
    return made


def findings(world: World) -> list[VerifyFinding]:
    plan = plan_verify(world.data_dir, None)
    checked = [check_segment(item) for item in plan.segments]
    return [*plan.findings, *(finding for result in checked for finding in result.findings), *between(checked)]


def segment_files(world: World, suffix: str) -> list[Path]:
    return sorted(Path(world.data_dir, "topics").glob(f"*/*.{suffix}"))


def test_a_sound_directory_has_no_findings(world: World) -> None:
    plan = plan_verify(world.data_dir, None)
    assert [(item.first_seq, item.is_active) for item in plan.segments] == [
        (1, False),
        (21, False),
        (41, False),
        (61, True),
    ]
    assert sum(check_segment(item).frames for item in plan.segments) == 70
    assert findings(world) == []


def test_each_damaged_frame_is_found_and_its_neighbours_are_not(world: World) -> None:
    world.stop()
    damaged = segment_files(world, "data")[1]
    raw = bytearray(damaged.read_bytes())
    frames = scan_segment(bytes(raw))
    for at in (3, 11):
        raw[int(frames.offset[at]) + 45] ^= 1
    damaged.write_bytes(raw)
    found = findings(world)
    assert [(f.from_seq, f.to_seq, f.offset, f.problem) for f in found] == [
        (24, 24, int(frames.offset[3]), "xxh3"),
        (32, 32, int(frames.offset[11]), "xxh3"),
    ]
    assert {f.file for f in found} == {str(damaged)}


def test_indexes_and_missing_files_are_found(world: World) -> None:
    world.stop()
    first, second, *_ = segment_files(world, "idx")
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    segment_files(world, "data")[2].unlink()
    problems = {(f.from_seq, f.problem) for f in findings(world)}
    assert problems == {(1, "index: missing"), (21, "index: length"), (41, "file missing")}


def test_a_truncated_segment_names_the_seqs_it_lost(world: World) -> None:
    world.stop()
    damaged = segment_files(world, "data")[0]
    raw = damaged.read_bytes()
    damaged.write_bytes(raw[: len(raw) // 2])
    found = findings(world)
    assert found
    assert all(1 <= f.from_seq <= f.to_seq <= 20 for f in found)
    assert any("index" in f.problem for f in found)


def test_a_running_server_is_not_taken_for_damage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    index = verify_job._index
    torn: list[str] = []

    def then_more(files: Any, cold: Any) -> Any:
        found = look_at(files, cold)
        world.write("new", *range(9))
        world.sim.checkpoint()
        return found

    def with_files_left(world: World) -> None:
        world.write("gone", *range(30))
        world.sim.checkpoint()
        files = segment_files(world, "*")
        kept = {file: file.read_bytes() for file in files}
        world.drop("gone")
        for file, content in kept.items():
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content[: len(content) // 2] if file.parent != files[0].parent else content)

    with_files_left(world)

    def torn_once(files: Any, item: SegmentToCheck, data: memoryview, finds: Any) -> Any:
        """The pair is replaced between the looks at its two files, every time that a segment is looked at first."""
        is_first = item.stem not in torn
        torn.append(item.stem)
        return index(files, item, data[:-1] if is_first else data, finds)

    monkeypatch.setattr(verify_job, "look_at", then_more)
    monkeypatch.setattr(verify_job, "_index", torn_once)
    assert findings(world) == []
    assert len(torn) == 2 * len(set(torn))
    assert {item.topic for item in plan_verify(world.data_dir, None).segments} == {"a", "new"}


def test_no_directory_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no data directory"):
        plan_verify(str(tmp_path), None)


# --- ledgers --------------------------------------------------------------------------------------------------------


def test_a_ledger_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    first = Ledger(path, "inputs")
    assert not first.resumed
    first.record("a", {"rows": 3})
    with path.open("a") as file:
        file.write('{"key": "torn", "val')
    second = Ledger(path, "inputs")
    assert second.get("a") == {"rows": 3}
    assert "torn" not in second
    second.record("b")
    second.record("c")
    third = Ledger(path, "inputs")
    assert all(key in third for key in "abc")
    assert not Ledger(path, "other inputs").resumed


def test_a_finished_ledger_is_gone(tmp_path: Path) -> None:
    ledger = Ledger(ledger_path("verify", "x", folder=str(tmp_path)), "x")
    ledger.record("a")
    ledger.finish()
    assert list(tmp_path.iterdir()) == []


def test_work_done_in_one_folder_is_not_taken_for_that_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed verify of `data` here says nothing about `data` there."""
    names = []
    for home in ("one", "two"):
        (tmp_path / home / "data").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / home)
        names.append(place_of("data"))
    assert names == [str(tmp_path / home / "data") for home in ("one", "two")]
    assert place_of("s3://bucket/data") == "s3://bucket/data"


# --- archives -------------------------------------------------------------------------------------------------------


def parquet(folder: Path, relative: str, seqs: list[int], epoch: int = 1) -> str:
    path = folder / relative
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"epoch": [epoch] * len(seqs), "seq": seqs, "data": ["1"] * len(seqs)}), path)
    return relative


def test_a_manifest_line_has_the_seqs_and_the_hash(tmp_path: Path) -> None:
    relative = parquet(tmp_path, "topic=a%3Ab/date=2026-01-31/part-0.parquet", [5, 9, 7])
    file = described(tmp_path, relative)
    assert (file.topic, file.first_seq, file.last_seq, file.records) == ("a:b", 5, 9, 3)
    assert len(file.sha256) == 64
    add_to_manifest(tmp_path, [file])
    add_to_manifest(tmp_path, [])
    assert manifest(tmp_path) == {relative: file}


def test_committed_files_are_those_of_the_sink_s_log(tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()

    def entry(name: str) -> str:
        return json.dumps({"path": f"file://{tmp_path}/{name}", "size": 1, "action": "add"})

    (log / "9.compact").write_text(
        "\n".join(["v1", entry("topic=a/date=d/0.parquet"), entry("topic=a/date=d/1.parquet")])
    )
    (log / "9.compact.crc").write_text("x")
    (log / "8").write_text("\n".join(["v1", entry("topic=a/date=d/1.parquet")]))
    (log / "10").write_text("\n".join(["v1", entry("topic=a%253Ab/date=d/2.parquet")]))
    committed = committed_by_spark(tmp_path)
    assert committed == ["topic=a/date=d/0.parquet", "topic=a/date=d/1.parquet", "topic=a%3Ab/date=d/2.parquet"]
    left = tmp_path / "topic=a/date=d/left.parquet"
    left.parent.mkdir(parents=True)
    left.touch()
    assert orphans(tmp_path, committed) == [left]
    log.rename(tmp_path / "topic=a" / "_spark_metadata")  # the archive was moved
    assert committed_by_spark(tmp_path / "topic=a") == committed


def test_the_committed_offset_is_that_of_the_last_commit(tmp_path: Path) -> None:
    assert committed_offset(tmp_path) is None
    for folder in ("offsets", "commits"):
        (tmp_path / "_checkpoint" / folder).mkdir(parents=True)
    for number in (9, 10, 11):
        text = f'v1\n{{"batchWatermarkMs":0}}\n{{"a":{{"epoch":1,"seq":{number}}}}}\n'
        (tmp_path / "_checkpoint" / "offsets" / str(number)).write_text(text)
    for number in (9, 10):
        (tmp_path / "_checkpoint" / "commits" / str(number)).write_text("v1\n{}")
    assert committed_offset(tmp_path) == {"a": {"epoch": 1, "seq": 10}}


def test_a_folder_that_holds_something_else_is_never_tidied(tmp_path: Path) -> None:
    spark, delta = "_spark_metadata", "_delta_log"
    check_folder(tmp_path / "absent", spark)
    (tmp_path / spark).mkdir()
    check_folder(tmp_path, spark)  # killed before its first batch
    parquet(tmp_path, "topic=a/date=2026-01-31/part-0.parquet", [1])
    with pytest.raises(ConfigError, match="holds a table but no _checkpoint: it is no archive; choose another folder"):
        check_folder(tmp_path, spark)
    (tmp_path / "_checkpoint").mkdir()
    check_folder(tmp_path, spark)
    with pytest.raises(ConfigError, match="in another format: give --format parquet, or another folder"):
        check_folder(tmp_path, delta)
    (tmp_path / spark).rename(tmp_path / delta)
    with pytest.raises(ConfigError, match="in another format: give --format delta, or another folder"):
        check_folder(tmp_path, spark)


def test_two_archives_do_not_share_a_folder(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(ConfigError, match="another run is archiving into"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_an_archive_goes_into_a_folder(world: World, tmp_path: Path) -> None:
    source = JobSource(path=world.data_dir)
    ArchiveOptions(source=source, to=f"file://{tmp_path}/new").check()
    with pytest.raises(ConfigError, match="--to is a folder that this machine has mounted, not s3://bucket/x"):
        ArchiveOptions(source=source, to="s3://key:secret@bucket/x").check()
    world.write("a:" + "b" * 245, 1)
    ArchiveOptions(source=source, to=str(tmp_path / "new")).check()
    world.write("a:" + "b" * 246, 1)
    with pytest.raises(ConfigError, match="is too long for a folder: it cannot be archived"):
        ArchiveOptions(source=source, to=str(tmp_path / "new")).check()


def commit_offset(folder: Path, batch: int, seq: int) -> None:
    for log, text in (("offsets", f'v1\n{{}}\n{{"a":{{"epoch":1,"seq":{seq}}}}}\n'), ("commits", "v1\n{}")):
        (folder / "_checkpoint" / log).mkdir(parents=True, exist_ok=True)
        (folder / "_checkpoint" / log / str(batch)).write_text(text)


def test_a_trim_goes_no_further_than_what_is_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream of a continuous run commits another batch at any moment."""
    commit_offset(tmp_path, 0, 10)
    relative = parquet(tmp_path, "topic=a/date=2026-01-31/part-0.parquet", [1])
    run = _Archive.__new__(_Archive)
    run._folder, run._known = tmp_path, {}
    run._options = ArchiveOptions(source=JobSource(url="http://x"), to=str(tmp_path), trim=True)
    monkeypatch.setattr(run, "_committed", lambda: [relative, "not described yet"])

    def describe_new() -> None:
        run._known[relative] = described(tmp_path, relative)
        commit_offset(tmp_path, 1, 20)

    trimmed: list[int] = []
    monkeypatch.setattr(run, "_describe_new", describe_new)
    monkeypatch.setattr(JobSource, "cuts", lambda self: {})
    monkeypatch.setattr(archive_job, "trim_before", lambda remote, points, cuts: trimmed.append(points["a"].seq))
    assert run._trim()
    assert trimmed == [10]
    (tmp_path / relative).unlink()
    monkeypatch.setattr(run, "_describe_new", lambda: None)
    with pytest.raises(ConfigError, match="is not what the manifest says; nothing was trimmed"):
        run._trim()
    assert trimmed == [10]


def test_an_archive_is_of_one_data_directory(world: World, tmp_path: Path) -> None:
    """Another one gives the same epochs and seqs to other records."""
    world.sim.snapshot()
    source, folder = JobSource(path=world.data_dir), tmp_path / "archive"
    folder.mkdir()
    instance = instance_of(source.cuts())
    assert instance
    note_instance(folder, instance)
    ArchiveOptions(source=source, to=str(folder)).check()
    note_instance(folder, "another")
    ArchiveOptions(source=source, to=str(folder)).check()
    (folder / "_instance").write_text("another\n")
    with pytest.raises(ConfigError, match="is the archive of another server's topics; choose another folder"):
        ArchiveOptions(source=source, to=str(folder)).check()
    ArchiveOptions(source=JobSource(path=world.data_dir, topics="none*"), to=str(folder)).check()


def test_waves_keep_the_order_of_each_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_job, "WAVE_RECORDS", 100)

    def file(topic: str, first: int, last: int) -> ArchivedFile:
        count = last - first + 1
        return ArchivedFile(
            path=f"topic={topic}/{first}",
            topic=topic,
            first_epoch=1,
            last_epoch=1,
            first_seq=first,
            last_seq=last,
            records=count,
            bytes=1,
            sha256="",
        )

    add_to_manifest(tmp_path, [file("a", 101, 200), file("a", 1, 100), file("b", 1, 60), file("a", 150, 260)])
    waves = plan_waves(ReplayOptions(source=str(tmp_path), url="http://x"))
    assert waves == [["topic=a/1", "topic=b/1"], ["topic=a/101", "topic=a/150"]]
    only_b = plan_waves(ReplayOptions(source=str(tmp_path), url="http://x", topics="b"))
    assert only_b == [["topic=b/1"]]
    into = plan_waves(ReplayOptions(source=str(tmp_path), url="http://x", into="all"))
    assert into == [["topic=a/1"], ["topic=a/101", "topic=a/150"], ["topic=b/1"]]
    for asked in ("b,c", "c*"):
        with pytest.raises(ConfigError, match=r"the archive has nothing of topic 'c\*?'; it has a, b"):
            plan_waves(ReplayOptions(source=str(tmp_path), url="http://x", topics=asked))


def test_a_replay_finds_files_that_were_committed_right_before_a_kill(tmp_path: Path) -> None:
    """The manifest is written behind the commit."""
    first, last = (parquet(tmp_path, f"topic=a/date=2026-01-31/part-{n}.parquet", [n]) for n in (1, 2))
    parquet(tmp_path, "topic=a/date=2026-01-31/part-3.parquet", [3])
    add_to_manifest(tmp_path, [described(tmp_path, first)])
    (tmp_path / "_spark_metadata").mkdir()
    entries = [json.dumps({"path": f"file://{tmp_path}/{name}", "action": "add"}) for name in (first, last)]
    (tmp_path / "_spark_metadata" / "0").write_text("\n".join(["v1", *entries]))
    assert plan_waves(ReplayOptions(source=str(tmp_path), url="http://x")) == [[first, last]]


@pytest.mark.parametrize("topic", ["a", "orders:eu", "a.b-c_d:1:2"])
def test_every_reader_of_delta_finds_the_files_of_every_topic(tmp_path: Path, topic: str) -> None:
    delta = pytest.importorskip("deltalake")
    folder = tmp_path / "the archive"
    folder.mkdir()
    rows = {"epoch": [1, 1], "seq": [1, 2], "node": ["n", "n"], "tag": ["t", "t"], "data": ["1", "2"], "meta": ["", ""]}
    times = pa.array([0, 1], pa.timestamp("us", tz="UTC"))
    written = []
    for batch in range(2):
        parts = [pa.table(rows).append_column("ts", times)]
        file = delta_job._write_file(str(folder), batch, (topic, "1970-01-01"), parts)
        delta_job._commit(folder, delta_job._table(folder), [file], "app", batch)
        written.append(file["path"])
    assert sorted(delta_job.committed_by_delta(folder)) == sorted(written)
    assert {topic_of(path) for path in written} == {topic}
    table = delta.DeltaTable(str(folder))
    assert table.to_pyarrow_table(columns=["topic", "seq"]).column("topic").to_pylist() == [topic] * 4
    assert table.optimize.compact()["numFilesAdded"] == 1


def test_files_that_a_delta_table_has_put_together_are_replayed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, both = (
        parquet(tmp_path, f"topic=a/date=2026-01-31/part-{name}.parquet", seqs)
        for name, seqs in (("1", [1]), ("2", [2]), ("both", [1, 2]))
    )
    add_to_manifest(tmp_path, [described(tmp_path, name) for name in (one, two, both)])
    monkeypatch.setattr(replay_job, "committed_by_delta", lambda folder: [both])
    assert plan_waves(ReplayOptions(source=str(tmp_path), url="http://x", format="delta")) == [[both]]


def archived(folder: Path, *names: str) -> None:
    add_to_manifest(folder, [described(folder, parquet(folder, name, [n])) for n, name in enumerate(names, 1)])


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Says how many records the topics at the destination have got; many at first."""

    def set_to(count: int) -> None:
        monkeypatch.setattr(replay_job, "heads_at", lambda options: count)

    set_to(1000)
    return set_to


def test_a_replay_to_another_life_of_its_destination_is_not_taken_for_done(
    tmp_path: Path, heads: Callable[[int], None]
) -> None:
    options, state = ReplayOptions(source=str(tmp_path / "archive"), url="http://x"), str(tmp_path / "state")
    old, new = (f"topic=a/date=2026-01-{day}/part-0.parquet" for day in (1, 2))
    archived(tmp_path / "archive", old)
    ReplayPlan.of(options, state_dir=state).wrote(0, 7)
    archived(tmp_path / "archive", new)
    heads(7)
    assert ReplayPlan.of(options, state_dir=state).done == 1
    heads(6)
    with pytest.raises(ConfigError, match=r"http://x has not what a replay of .* wrote there: a topic was deleted"):
        ReplayPlan.of(options, state_dir=state)
    anew = ReplayPlan.of(options, state_dir=state, again=True)
    assert (anew.waves, anew.done) == ([[old, new]], 0)


@pytest.mark.usefixtures("heads")
def test_a_replay_that_is_through_writes_only_what_came_since(tmp_path: Path) -> None:
    options, state = ReplayOptions(source=str(tmp_path / "archive"), url="http://x"), str(tmp_path / "state")
    old, new, later = (f"topic=a/date=2026-01-{day}/part-0.parquet" for day in (1, 2, 3))
    archived(tmp_path / "archive", old)
    begun = ReplayPlan.of(options, state_dir=state)
    assert (begun.waves, begun.done) == ([[old]], 0)
    begun.wrote(0, 1)
    archived(tmp_path / "archive", new)
    grown = ReplayPlan.of(options, state_dir=state)
    assert (grown.waves, grown.done, grown.records_before) == ([[old], [new]], 1, 1)
    assert grown.job == begun.job
    archived(tmp_path / "archive", later)
    going_on = ReplayPlan.of(options, state_dir=state, again=True)  # as it was told when it was interrupted
    assert (going_on.waves, going_on.done) == ([[old], [new], [later]], 1)
    for wave in (1, 2):
        going_on.wrote(wave, 1)
    assert ReplayPlan.of(options, state_dir=state).done == 3
    anew = ReplayPlan.of(options, state_dir=state, again=True)
    assert (anew.waves, anew.done) == ([[old, new, later]], 0)
    assert anew.job != begun.job


@pytest.mark.usefixtures("heads")
def test_a_replay_of_what_nobody_can_compare_is_not_repeated_by_chance(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    parquet(tmp_path / "table", "part-0.parquet", [1])
    table = ReplayOptions(source=str(tmp_path / "table"), url="http://x")
    ReplayPlan.of(table, state_dir=state).wrote(0, 5)
    with pytest.raises(ConfigError, match=r"5 records of .*table were written to http://x before: --again writes them"):
        ReplayPlan.of(table, state_dir=state)
    assert ReplayPlan.of(table, state_dir=state, again=True).done == 0
    archive, old = ReplayOptions(source=str(tmp_path / "archive"), url="http://x"), "topic=a/date=2026-01-1/1.parquet"
    archived(tmp_path / "archive", old)
    ReplayPlan.of(archive, state_dir=state)
    (tmp_path / "archive" / "_manifest" / f"{1:020d}.jsonl").unlink()
    archived(tmp_path / "archive", "topic=a/date=2026-01-1/put-together.parquet")
    with pytest.raises(ConfigError, match="has lost or changed files since a replay of it began"):
        ReplayPlan.of(archive, state_dir=state)


@pytest.mark.usefixtures("heads")
def test_a_replay_knows_its_archive_by_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two archives of one relative name are two, and one of two names is one."""
    plans = []
    for home, name in (("one", "archive"), ("two", "archive"), ("two", "../two/archive/")):
        parquet(tmp_path / home / "archive", "part-0.parquet", [1])
        monkeypatch.chdir(tmp_path / home)
        options = ReplayOptions(source=name, url="http://x")
        plans.append(ReplayPlan.of(options, state_dir=str(tmp_path / "state")).job)
    assert plans[0] != plans[1] == plans[2]


# --- words ----------------------------------------------------------------------------------------------------------


def test_numbers_in_a_pipe_are_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    write_table([StatsRow("orders", None, 0, 7100, 353_636, 1, 7100, 1234.5)])
    assert capsys.readouterr().out == "orders\t1970-01-01 00:00:00\t-\t7100\t353636\t1234.50\n"


def test_progress_says_what_is_done_how_fast_and_how_long(tmp_path: Path) -> None:
    told = describe("verify", 30, 120, "segments", 300_000, 10.0)
    assert told == "verify: 30 of 120 segments, 30,000 rows/s, 30 s left"
    assert describe("archive", 5, None, "records", 0, 1.0) == "archive: 5 records"


def test_numbers_of_an_interrupted_run_count_while_nothing_has_changed(world: World) -> None:
    source = JobSource(path=world.data_dir)
    before = state_of(source.cuts()["a"])
    assert still_holds({**before, "rows": []}, before)
    world.write("a", 1)
    assert not still_holds({**before, "rows": []}, state_of(source.cuts()["a"]))


def test_time_buckets_have_units() -> None:
    assert [bucket_seconds(text) for text in ("30s", "15m", "1h", "2d")] == [30, 900, 3600, 172_800]
    with pytest.raises(ConfigError, match="such as 15m, not '15'"):
        bucket_seconds("15")


def test_a_project_is_written_once(tmp_path: Path) -> None:
    import yaml  # type: ignore[import-untyped]

    folder = tmp_path / "shop"
    write_project(folder, {"url": "http://localhost:4000", "subscribePrefix": "orders"})
    spec = yaml.safe_load((folder / SPEC).read_text())
    assert spec["name"] == "shop"
    assert spec["configuration"]["spark.topics.url"] == "http://localhost:4000"
    for source in (folder / "transformations").glob("*.py"):
        compile(source.read_text(), source.name, "exec")
    with pytest.raises(ConfigError, match="already"):
        write_project(folder, {})
    assert run_command(folder, ["--full-refresh-all"])[-1] == "--full-refresh-all"
    settings = settings_of(folder)
    assert settings["spark.sql.warehouse.dir"] == f"{folder}/warehouse"
    assert settings["spark.connect.grpc.binding.address"] == "127.0.0.1"
    assert settings["spark.connect.grpc.binding.port"] == "0"  # whichever is free


def test_the_runner_of_a_pipeline_is_heard_line_by_line_and_its_failure_is_one_sentence(tmp_path: Path) -> None:
    told: list[str] = []
    script = "print('2026-01-01 00:00:00: Flow bronze is RUNNING.'); print('noise')"
    run_client([sys.executable, "-c", script], tmp_path, "sc://localhost:1", told.append)
    assert told == ["2026-01-01 00:00:00: Flow bronze is RUNNING."]
    failing = f"{script}; print('topics.errors.ConfigError: there is no topic'); raise SystemExit(1)"
    with pytest.raises(ConfigError, match=r"^there is no topic$"):
        run_client([sys.executable, "-c", failing], tmp_path, "sc://localhost:1", told.append)


def test_a_project_whose_source_cannot_be_read_is_refused_before_it_runs(world: World, tmp_path: Path) -> None:
    write_project(tmp_path / "good", {"path": world.data_dir, "subscribe": "a"})
    check_source(tmp_path / "good")
    (tmp_path / "good" / SPEC).write_text("name: mine\n")
    check_source(tmp_path / "good")
    write_project(tmp_path / "bad", {"path": world.data_dir, "subscribe": "nope"})
    with pytest.raises(ConfigError, match="there is no topic 'nope'"):
        check_source(tmp_path / "bad")
    (tmp_path / "bad" / "storage").mkdir()  # it ran, and its topic was deleted since
    check_source(tmp_path / "bad")
    write_project(tmp_path / "away", {"url": "http://127.0.0.1:9", "subscribe": "a"})
    with pytest.raises(TopicsError, match="does not answer"):
        check_source(tmp_path / "away")
    done = CliRunner().invoke(pipeline, ["init", str(tmp_path / "new"), "--url", "nonsense"])
    assert "option url is a server" in str(done.exception)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["my shop", "2026", "a: b", '"quoted"', "{x} é"])
def test_a_project_may_have_any_name(tmp_path: Path, name: str) -> None:
    import yaml

    folder = tmp_path / name
    write_project(folder, {"path": f"{tmp_path}/{name}", "subscribe": "a"})
    spec = yaml.safe_load((folder / SPEC).read_text(encoding="utf-8"))
    assert spec["name"] == name
    assert spec["storage"] == f"file://{folder}/storage"
    assert spec["configuration"]["spark.topics.path"] == str(folder)
    assert settings_of(folder)["spark.driver.extraJavaOptions"] == f'"-Dderby.stream.error.file={folder}/derby.log"'
    with pytest.raises(ConfigError, match="no tables in a folder with # or ; in its path"):
        write_project(tmp_path / f"{name}#1", {})


def test_a_project_s_paths_hold_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["--path", "data", "--cold", "cold", "--api-key-file", "key"]
    assert CliRunner().invoke(pipeline, ["init", "shop", *given]).exit_code == 0
    spec = (tmp_path / "shop" / SPEC).read_text()
    assert [line for line in spec.splitlines() if "spark.topics." in line and str(tmp_path) in line] == [
        f'  spark.topics.{name}: "{tmp_path}/{file}"'
        for name, file in (("path", "data"), ("coldPath", "cold"), ("apiKeyFile", "key"))
    ]


def test_a_failure_of_ours_is_told_without_spark_s_wrapping() -> None:
    told = """An error occurred while calling o88.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "batch.py", line 9, in plan_batch
topics.errors.ConfigError: there is no topic 'b' in /data; it has a

\tat org.apache.spark.api.python.BasePythonRunner"""
    failure = failure_of(RuntimeError(told))
    assert isinstance(failure, ConfigError)
    assert str(failure) == "there is no topic 'b' in /data; it has a"
    lost = failure_of(RuntimeError("topics.errors.DataLoss: records 1..2 of topic 'a' are lost (cap)"))
    assert (str(lost), lost.exit_status) == ("records 1..2 of topic 'a' are lost (cap)", 1)
    assert str(failure_of(RuntimeError("\nJava heap space\nat x"))) == "Spark failed: Java heap space"
    java = (
        "An error occurred while calling o48.load.\n: org.apache.spark.SparkClassNotFoundException: [X] no jsn\n\tat y"
    )
    assert str(failure_of(RuntimeError(java))) == "Spark failed: [X] no jsn"


def test_a_failure_of_java_is_told_with_its_cause() -> None:
    nested = ": io.k8s.ClientException: An error has occurred.\n\tat a\nCaused by: java.io.IOException: x\n\tat b"
    nested += "\nCaused by: java.net.UnknownHostException: no-such-host\n\tat c"
    told = failure_of(RuntimeError(f"An error occurred while calling None.Context\n{nested}"))
    assert str(told) == "Spark failed: An error has occurred. (UnknownHostException: no-such-host)"
    gone = RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")
    said = 'WARNING: x\nException in thread "main" org.apache.SparkException: Master must be yarn\n\tat y\n'
    assert str(failure_of(gone, said)) == "Spark failed: Master must be yarn"
    stopped = RuntimeError("Cannot call methods on a stopped SparkContext.\nThis stopped SparkContext was created at:")
    said = "01:07:12 ERROR Backend: Application has been killed. Reason: All masters are unresponsive!\n"
    assert str(failure_of(stopped, said)).endswith("Reason: All masters are unresponsive!")
    assert str(failure_of(gone, "")).startswith("Spark failed: [JAVA_GATEWAY_EXITED]")


def test_a_session_that_does_not_start_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Java refuses a master or a setting only when it is up, or does not come up at all."""
    errors = pytest.importorskip("pyspark.errors")

    def refuse(*_: Any, **__: Any) -> None:
        raise errors.PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr("topics.spark.start.check_ready", lambda: None)
    monkeypatch.setattr("topics.spark.start.session", refuse)
    monkeypatch.setattr("logging.disable", lambda: None)
    with (
        pytest.raises(JobFailed, match=r"^Spark failed: \[JAVA_GATEWAY_EXITED\]"),
        spark_session("verify", "local[x", (), check=lambda: None),
    ):
        pytest.fail("there is no session")


def test_heads_that_no_record_reaches_are_no_findings(world: World) -> None:
    """An ephemeral topic, one that was, and one whose head a power cut moved."""
    for name in ("e", "f"):
        world.put(name, durability="ephemeral", cap_records=2)
        for n in range(9):
            world.write(name, {"n": n}, tag="t")
        world.delete(name, match="t")
    world.put("f", durability="fsync")
    world.sim.sync_all()
    assert findings(world) == []
    world.sim.snapshot()
    assert findings(world) == []
    world.kill()
    Path(world.data_dir, ".topics.lock").write_text("pid=1\nboot=other\n")
    world.start()
    world.delete("a", match="t")
    world.put("a", ttl_ms=1000)
    assert findings(world) == []


# --- without Spark ---------------------------------------------------------------------------------------------------


def test_verify_in_this_process_finds_damage_and_goes_on_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = World(tmp_path)
    made.write("v", *range(300))
    made.sim.checkpoint()
    made.stop()
    files = segment_files(made, "data")
    raw = bytearray(files[4].read_bytes())
    raw[100] ^= 1
    files[4].write_bytes(raw)
    monkeypatch.setattr(verify_job, "SEGMENTS_PER_WAVE", 5)
    told: list[str] = []

    class Interrupted(Reporter):
        def advance(self, done: int, *, rows: int = 0, total: int | None = None) -> None:
            if done == 10:
                raise KeyboardInterrupt

        def note(self, text: str) -> None:
            told.append(text)

    state = str(tmp_path / "state")
    with pytest.raises(KeyboardInterrupt):
        verify_job.verify(None, path=made.data_dir, reporter=Interrupted(), state_dir=state)
    report = verify_job.verify(None, path=made.data_dir, reporter=Interrupted(), state_dir=state)
    assert told == ["going on: 10 of 15 segments were checked before"]
    assert (report.ok, report.segments, report.frames) == (False, 15, 299)
    (found,) = report.findings
    assert (found.topic, found.from_seq, found.file) == ("v", 83, str(files[4]))


def test_stats_in_this_process_count_by_topic_tag_and_time(tmp_path: Path) -> None:
    made = World(tmp_path)
    for tag in ("eu:1", "eu:2", "us:1", "eu", ""):
        made.write("s", *["xx"] * 10, tag=tag)
        made.clock.advance(60_000)
    made.sim.checkpoint()
    made.write("s", "x", tag="eu:3")  # still in the log
    made.write("other", 1)
    source = JobSource(path=made.data_dir)
    rows = stats_job.stats(None, source, bucket="1m", state_dir=str(tmp_path / "state"))
    assert [(row.topic, row.tag_prefix, row.records, row.bytes, row.first_seq, row.last_seq) for row in rows] == [
        ("other", None, 1, 1, 1, 1),
        ("s", "eu", 10, 40, 1, 10),
        ("s", "eu", 10, 40, 11, 20),
        ("s", "us", 10, 40, 21, 30),
        ("s", "eu", 10, 40, 31, 40),
        ("s", "", 10, 40, 41, 50),
        ("s", "eu", 1, 3, 51, 51),
    ]
    assert {row.bucket_ms % 60_000 for row in rows} == {0}
    (whole,) = stats_job.stats(
        None, JobSource(path=made.data_dir, topics="other"), bucket="1d", state_dir=str(tmp_path / "state")
    )
    assert whole.per_s == round(1 / 86_400, 6)


def test_the_verbs_run_without_spark_unless_it_is_asked_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pyspark", "py4j"):
        monkeypatch.setitem(sys.modules, module, None)
    state = str(Path(world.data_dir).parent / "state")
    found = CliRunner().invoke(verify, ["--path", world.data_dir, "--state", state, "--json"], catch_exceptions=False)
    assert (found.exit_code, json.loads(found.stdout)["frames"]) == (0, 70)
    counted = CliRunner().invoke(stats, ["--path", world.data_dir, "--state", state, "--json"], catch_exceptions=False)
    assert json.loads(counted.stdout)["records"] == 70
    refused = CliRunner().invoke(verify, ["--path", world.data_dir, "--master", "local[1]"])
    assert isinstance(refused.exception, ConfigError)
