"""A log with a bad place in it, read from its directory: what lies behind is announced, and never just left out."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from tests.spark.world import World, read_path

from topics.errors import DataLoss
from topics.runtime.recovery import reader
from topics.spark.jobs.verify import plan_verify
from topics.storage.osfs import OsFs

SPOILED = b"\xa5"


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    for number in range(40):
        made.write("a", f"payload-{number:03d}")
    made.write("b", 1, 2, 3)
    made.kill()
    return made


def place_of(world: World, number: int) -> tuple[Path, int]:
    """File and offset of a byte of one payload in the log."""
    wanted = f"payload-{number:03d}".encode()
    for path in sorted(Path(world.data_dir, "wal").rglob("*.log")):
        at = path.read_bytes().find(wanted)
        if at >= 0:
            return path, at
    raise AssertionError(f"payload {number} is in no log")


def put(place: tuple[Path, int], data: bytes) -> bytes:
    """Write there; gives what was there before."""
    path, at = place
    with path.open("r+b") as file:
        file.seek(at)
        before = file.read(len(data))
        file.seek(at)
        file.write(data)
    return before


def tombstones(table: pa.Table) -> list[tuple[int, int, str]]:
    rows = table.filter(pa.compute.equal(table.column("kind"), "tombstone")).to_pylist()
    return [(row["gap_from"], row["gap_to"], row["reason"]) for row in rows]


def test_the_last_record_of_a_topic_is_announced_too_although_no_frame_says_that_it_was_there(world: World) -> None:
    put(place_of(world, 39), SPOILED)
    [(gap_from, gap_to, reason)] = tombstones(read_path(world, "a", onDataLoss="rows"))
    assert (gap_from, reason) == (40, "restart")
    world.start()
    assert tombstones(read_path(world, "a", onDataLoss="rows")) == [(gap_from, gap_to, reason)]


def test_what_lies_behind_a_hole_is_a_gap_as_the_next_start_makes_it(world: World) -> None:
    put(place_of(world, 20), SPOILED)
    with pytest.raises(DataLoss, match=r"of topic 'a' are lost \(restart\)"):
        read_path(world, "a")
    found = read_path(world, "a", onDataLoss="rows")
    assert [row["seq"] for row in found.to_pylist() if row["kind"] == "record"] == list(range(1, 21))
    [(gap_from, gap_to, reason)] = tombstones(found)
    assert (gap_from, reason) == (21, "restart")
    assert gap_to >= 40
    world.start()
    assert tombstones(read_path(world, "a", onDataLoss="rows")) == [(gap_from, gap_to, reason)]


def test_a_file_behind_a_damaged_one_is_out_of_reach(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(40):
        world.write("a", f"payload-{number:03d}" + "x" * 4000)
    world.kill()
    assert len(list(Path(world.data_dir, "wal").rglob("*.log"))) > 1
    put(place_of(world, 3), SPOILED)
    found = read_path(world, "a", onDataLoss="rows")
    assert [row["seq"] for row in found.to_pylist() if row["kind"] == "record"] == [1, 2, 3]
    assert tombstones(found)[0][0] == 4
    assert tombstones(found)[-1][1] >= 40


def test_a_page_of_a_running_server_may_come_late(world: World) -> None:
    place = place_of(world, 20)
    before = put(place, SPOILED)
    looked = reader.look(OsFs(), world.data_dir, sleep=lambda _: void(put(place, before)))
    assert not looked.is_damaged
    assert looked.state.topic("a").head == 40


def void(_: bytes) -> None:
    return


def test_a_torn_end_is_an_end(world: World) -> None:
    path, at = place_of(world, 39)
    text = path.read_bytes()
    put((path, at), bytes(len(text.rstrip(b"\0")) - at))
    put((path, at), SPOILED)
    looked = reader.look(OsFs(), world.data_dir, sleep=lambda _: pytest.fail("nothing lies behind it"))
    assert not looked.is_damaged
    assert read_path(world, "a").num_rows == 39


def test_verify_names_the_hole(world: World) -> None:
    path, _ = place = place_of(world, 20)
    put(place, SPOILED)
    [finding] = plan_verify(world.data_dir, None).findings
    assert path.match(finding.file)
    assert 0 < finding.offset < place[1]
    assert finding.problem == "log: xxh3"
