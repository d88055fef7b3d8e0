"""Reads of a directory: narrow ranges, gaps, damage, files that move under the reader, cold stores, copies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.spark.world import World, options, read_path, read_tasks, rows_in

from topics.errors import ConfigError, Corruption, DataLoss
from topics.formats.segments import encode_segment_frames, scan_segment
from topics.spark.logs.directory import LeftOutWarning
from topics.spark.logs.log import LogAddress, open_log
from topics.spark.option_values import TopicChoice
from topics.spark.options import read_options
from topics.spark.planning.batch import plan_batch
from topics.spark.planning.cut import LossWarning
from topics.spark.planning.tasks import TopicPart


@pytest.fixture
def world(tmp_path: Path) -> World:
    """200 records in segments of 20, ten of them in the active one, then 7 in the log; a tick apart each."""
    made = World(tmp_path)
    for n in range(200):
        made.write("a", {"n": n}, tag=f"t{n % 3}", node=f"n{n % 2}")
        made.clock.advance(1)
    made.sim.checkpoint()
    made.write("a", *range(7))
    return made


def seqs(table: pa.Table) -> list[int]:
    return [seq for seq in table.column("seq").to_pylist() if seq is not None]


def test_ranges_are_half_open(world: World) -> None:
    assert seqs(read_path(world, "a", startingOffsets='{"a":19}', endingOffsets='{"a":42}')) == list(range(19, 42))
    assert seqs(read_path(world, "a", startingOffsets='{"a":205}')) == [205, 206, 207]
    assert seqs(read_path(world, "a", startingOffsets='{"a":-2}', endingOffsets='{"a":-1}')) == list(range(1, 208))


def test_words_name_the_ends(world: World) -> None:
    assert seqs(read_path(world, "a", startingOffsets='{"a":-1}')) == []
    assert seqs(read_path(world, "a", endingOffsets='{"a":-2}')) == []
    assert len(seqs(read_path(world, "a", startingOffsets="earliest", endingOffsets="latest"))) == 207


def test_a_path_that_cannot_be_read_is_told_in_one_sentence(world: World, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").touch()
    for path, sentence in (
        (tmp_path / "file", "cannot be read: Not a directory"),
        (tmp_path / "absent", "is no data directory: it is empty or does not exist"),
        (tmp_path / "other", "is no data directory: it holds neither"),
    ):
        with pytest.raises(ConfigError, match=f"path {path} {sentence}"):
            read_path(str(path), "a")
    with pytest.raises(ConfigError, match="path nosuch://bucket/x cannot be opened"):
        read_path("nosuch://bucket/x", "a")


def test_times_choose_by_binary_search(world: World) -> None:
    rows = world.rows("a")
    for at in (rows[0].ts - 5, rows[0].ts, rows[77].ts, rows[199].ts, rows[206].ts, rows[206].ts + 1):
        started = read_path(world, "a", startingTimestamp=str(at), startingOffsetsByTimestampStrategy="latest")
        assert seqs(started) == [r.seq for r in rows if r.ts >= at]
        assert seqs(read_path(world, "a", endingTimestamp=str(at))) == [r.seq for r in rows if r.ts < at]


def test_a_start_beyond_the_end_is_told(world: World) -> None:
    last = world.rows("a")[-1]
    with pytest.raises(ConfigError, match=f"no record of topic 'a' is as young as {last.ts + 1} ms; .*Strategy=latest"):
        read_path(world, "a", startingTimestamp=str(last.ts + 1))
    assert seqs(read_path(world, "a", startingOffsets=f'{{"a":{last.seq + 1}}}')) == []
    with pytest.raises(ConfigError, match=rf"'a' is given {last.seq + 2} and its next record will be {last.seq + 1}:"):
        read_path(world, "a", startingOffsets=f'{{"a":{last.seq + 2}}}')


def test_tags_and_nodes_are_tested_before_data_is_gathered(world: World) -> None:
    rows = world.rows("a")
    assert rows_in(read_path(world, "a", tag="t1")) == [row for row in rows if row.tag == "t1"]
    assert rows_in(read_path(world, "a", tag="t*", node="n1")) == [r for r in rows if r.tag and r.node == "n1"]
    assert seqs(read_path(world, "a", tag="t1", columns="seq")) == [row.seq for row in rows if row.tag == "t1"]


def test_a_limit_counts_records_that_pass(world: World) -> None:
    world.delete("a", match="t0")
    expected = [row.seq for row in world.rows("a") if row.tag == "t2"][:9]
    assert seqs(read_path(world, "a", tag="t2", limit="9")) == expected


def test_a_second_action_sees_the_same_rows(world: World) -> None:
    wanted = options(world, "a")
    tasks = plan_batch(wanted, clock=world.clock.wall_ms)
    first = rows_in(read_tasks(tasks, wanted))
    world.write("a", *range(100))
    world.sim.checkpoint()
    world.sim.snapshot()
    assert rows_in(read_tasks(tasks, wanted)) == first


def test_frames_that_moved_from_the_log_into_segments_are_found(world: World) -> None:
    wanted = options(world, "a")
    tasks = plan_batch(wanted, clock=world.clock.wall_ms)
    expected = world.rows("a")
    for _ in range(3):  # both kept snapshots lie behind the frames then, so their files go
        world.write("b", *range(2000))
        world.sim.snapshot()
    assert rows_in(read_tasks(tasks, wanted)) == expected


def test_records_evicted_since_planning_are_a_gap(world: World) -> None:
    wanted = options(world, "a")
    tasks = plan_batch(wanted, clock=world.clock.wall_ms)
    world.put("a", cap_records=50)
    world.sim.checkpoint()
    world.clock.advance(2000)
    world.sim.tick()
    with pytest.raises(DataLoss, match=r"of topic 'a' are lost \(cap\)"):
        read_tasks(tasks, wanted)
    rows = options(world, "a", onDataLoss="rows")
    table = read_tasks(tasks, rows)
    gaps = table.filter(pc.equal(table["kind"], "tombstone")).to_pylist()
    # Whatever is not in a gap is in the table: no seq is missing, none comes twice.
    announced = [seq for gap in gaps for seq in range(gap["gap_from"], gap["gap_to"] + 1)]
    assert sorted(announced + seqs(table)) == list(range(1, 208))
    assert {gap["reason"] for gap in gaps} == {"cap"}


def test_deleted_segments_vanish_without_a_word(world: World) -> None:
    wanted = options(world, "a")
    tasks = plan_batch(wanted, clock=world.clock.wall_ms)
    world.delete("a", before=101)
    world.clock.advance(2000)
    world.sim.tick()
    assert seqs(read_tasks(tasks, wanted)) == list(range(101, 208))


def test_a_topic_made_anew_since_planning_is_a_gap(world: World) -> None:
    wanted = options(world, "a")
    tasks = plan_batch(wanted, clock=world.clock.wall_ms)
    world.drop("a")
    world.clock.advance(2000)
    world.sim.tick()
    world.write("a", 1)
    with pytest.raises(DataLoss, match=r"topic 'a' was created again .*: it is at seq 1 now"):
        read_tasks(tasks, wanted)


def test_a_topic_deleted_since_planning_is_said_to_be_deleted(world: World) -> None:
    wanted, lenient = options(world, "a"), options(world, "a", onDataLoss="rows")
    tasks = plan_batch(wanted, clock=world.clock.wall_ms)
    world.drop("a")
    world.clock.advance(2000)
    world.sim.tick()
    with pytest.raises(DataLoss, match=r"'a' does not exist any more \(deleted\): .*leave it out, or create it again"):
        read_tasks(tasks, wanted)
    lost = [row for row in read_tasks(tasks, lenient).to_pylist() if row["kind"] == "tombstone"]
    assert {row["reason"] for row in lost} == {"deleted"}


def test_warnings_name_the_gap(world: World) -> None:
    world.put("a", cap_records=10)
    with pytest.warns(LossWarning, match=r"records 1\.\.197 of topic 'a' are lost \(cap\)"):
        table = read_path(world, "a", startingOffsets='{"a":1}', failOnDataLoss="false")
    assert seqs(table) == list(range(198, 208))


def test_ttl_is_applied_at_the_time_of_planning(world: World) -> None:
    world.put("short", ttl_ms=1000)
    world.write("short", 1, 2)
    world.clock.advance(600)
    world.write("short", 3)
    world.clock.advance(400)
    assert seqs(read_path(world, "short")) == [1, 2, 3]
    world.clock.advance(1)
    assert seqs(read_path(world, "short")) == [3]
    with pytest.raises(DataLoss, match=r"1\.\.2 of topic 'short' are lost \(ttl\)"):
        read_path(world, "short", startingOffsets='{"short":1}')


def test_a_bad_frame_names_file_seq_and_offset(world: World) -> None:
    world.stop()
    damaged = sorted(Path(world.data_dir, "topics").glob("*/*.data"))[2]
    raw = bytearray(damaged.read_bytes())
    frames = scan_segment(bytes(raw))
    at = int(frames.offset[5])
    raw[at + 40] ^= 0x10
    damaged.write_bytes(raw)
    for policy in ("warn", "rows", "fail"):
        with pytest.raises(Corruption) as caught:
            read_path(world, "a", onDataLoss=policy)
    text = str(caught.value)
    assert damaged.name in text
    assert f"seq {int(frames.seq[5])}" in text
    assert caught.value.offset == at
    assert seqs(read_path(world, "a", endingOffsets='{"a":41}')) == list(range(1, 41))


def test_a_segment_that_ends_early_between_two_frames_is_never_taken_for_whole(world: World) -> None:
    world.stop()
    wanted = options(world, "a")
    tasks = plan_batch(wanted, clock=world.clock.wall_ms)
    cut = sorted(Path(world.data_dir, "topics").glob("*/*.data"))[2]
    raw = cut.read_bytes()
    cut.write_bytes(raw[: int(scan_segment(raw).offset[-1])])
    with pytest.raises(Corruption, match=cut.name):
        read_tasks(tasks, wanted)


def test_small_segments_with_and_without_deleted_records_share_a_batch(world: World) -> None:
    world.delete("a", match="t1")
    world.sim.checkpoint()
    table = read_path(world, "a")
    assert rows_in(table) == world.rows("a")
    assert table.column("seq").num_chunks < 4


def test_a_lost_index_is_rebuilt_in_memory(world: World) -> None:
    expected = world.rows("a")
    world.stop()
    indexes = sorted(Path(world.data_dir, "topics").glob("*/*.idx"))
    indexes[0].unlink()
    indexes[1].write_bytes(indexes[1].read_bytes()[:-7])
    assert rows_in(read_path(world, "a")) == expected
    assert not indexes[0].exists()


def test_a_missing_segment_is_never_skipped(world: World) -> None:
    world.stop()
    sorted(Path(world.data_dir, "topics").glob("*/*.data"))[3].unlink()
    with pytest.raises(Corruption, match="file missing"):
        read_path(world, "a")


def test_a_copy_reads_like_the_original(world: World, tmp_path: Path) -> None:
    expected = world.rows("a")
    shutil.copytree(world.data_dir, tmp_path / "copy")
    world.write("a", "later")
    assert rows_in(read_path(str(tmp_path / "copy"), "a")) == expected
    assert rows_in(read_path(f"file://{tmp_path}/copy", "a")) == expected


def test_a_reader_changes_nothing(world: World) -> None:
    def state() -> dict[str, tuple[int, int]]:
        files = [path for path in Path(world.data_dir).rglob("*") if path.is_file()]
        return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}

    before = state()
    read_path(world, "a")
    assert state() == before


def test_a_cold_directory_alone_names_topics_by_id(tmp_path: Path) -> None:
    folder = tmp_path / "topics" / "0000000A"
    folder.mkdir(parents=True)
    for first in (1, 4):
        made = encode_segment_frames(
            seqs=range(first, first + 3), ts=[1000 + first] * 3, datas=[b'{"d":%d}' % n for n in range(3)]
        )
        (folder / f"seg-{first:016d}.data").write_bytes(made.buffer)
        (folder / f"seg-{first:016d}.idx").write_bytes(made.idx.tobytes())
    (tmp_path / "OWNER").write_text("9" * 32)
    table = read_path(str(tmp_path), "recovered:0000000A")
    assert seqs(table) == [1, 2, 3, 4, 5, 6]
    assert set(table.column("topic").to_pylist()) == {"recovered:0000000A"}
    with pytest.raises(ConfigError, match="it has recovered:0000000A"):
        read_path(str(tmp_path), "orders")


def test_an_ephemeral_topic_needs_a_server(world: World) -> None:
    world.put("gone", durability="ephemeral")
    with pytest.raises(ConfigError, match="only in the server's memory; read it with url"):
        read_path(world, "gone")
    wanted = read_options({"path": world.data_dir, "subscribePattern": ".*"}, streaming=False)
    with pytest.warns(LeftOutWarning, match="topic 'gone' is ephemeral"):
        tasks = plan_batch(wanted, clock=world.clock.wall_ms)
    assert {part.topic for task in tasks for part in task} == {"a"}


def test_a_look_that_goes_on_is_a_look_from_the_start(world: World) -> None:
    log = open_log(LogAddress(path=world.data_dir))
    for n in range(5):
        world.write("a", *range(n * 40 + 1))
        if n == 2:
            world.sim.snapshot()
        fresh = open_log(LogAddress(path=world.data_dir))
        now_ms = world.clock.wall_ms()
        again, anew = (each.cuts(TopicChoice(("a",)), now_ms=now_ms)["a"] for each in (log, fresh))
        assert (again.head_seq, again.earliest_seq) == (anew.head_seq, anew.earliest_seq)
        assert [(b.first_seq, b.end_seq) for b in again.blocks][:3] == [(b.first_seq, b.end_seq) for b in anew.blocks][
            :3
        ]


def test_router_copies_show_once_they_are_stored_and_are_never_passed_over(world: World) -> None:
    world.route("a", "copies")
    for n in range(6):
        world.write("a", *range(10))
        whole = world.rows("copies")
        shown = rows_in(read_path(world, "copies"))
        assert shown == whole[: len(shown)]
        world.write("copies", "direct")  # its frame lies behind copies that are in no file
        shown = rows_in(read_path(world, "copies"))
        assert shown == world.rows("copies")[: len(shown)]
        if n % 2:
            world.sim.checkpoint()
            assert rows_in(read_path(world, "copies")) == world.rows("copies")


def test_an_empty_task_gives_nothing(world: World) -> None:
    wanted = options(world, "a")
    assert read_tasks([(TopicPart(topic="a", epoch=1),), ()], wanted).num_rows == 0


def test_records_of_a_topic_that_stopped_being_ephemeral_are_there_before_a_checkpoint(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put("e", durability="ephemeral")
    world.write("e", 1, 2)
    world.put("e", durability="fsync")
    world.write("e", 3, 4)
    with pytest.warns(LossWarning):
        assert [row.data for row in rows_in(read_path(world, "e", failOnDataLoss="false"))] == ["3", "4"]
    with pytest.raises(DataLoss, match=r"1\.\.2 .*restart"):  # they are in no file yet, and may never be
        read_path(world, "e")
    world.sim.checkpoint()
    assert [row.data for row in rows_in(read_path(world, "e"))] == ["1", "2", "3", "4"]
