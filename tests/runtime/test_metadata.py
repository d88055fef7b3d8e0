"""Rows of groups G and H of the fault matrix that need a whole engine: lost snapshots, and a start that takes time.

Rows are those of `docs/fault-matrix.md`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.crash.harness import Rig, read_all, survey
from tests.crash.ledger import Seen
from tests.runtime.world import World

from topics.api.build import ServerApp
from topics.config import Settings
from topics.core.reading.walk import ReadRequest
from topics.errors import CorruptSegment, MetadataLost, NotReady, TopicsError, UnsupportedVersion
from topics.net.messages import Request, RequestHead, Response
from topics.runtime.kernel import recover
from topics.storage.fs import Fs
from topics.storage.osfs import RetryingFs
from topics.testing import FaultFs, SimClock, SimFs, SimHost
from topics.testing.crashes import crash_states

Edit = Callable[[bytes], bytes]


def aged() -> World:
    """Two snapshots, records in sealed segments, an active one and the log, deletes, a changed config."""
    world = World()
    world.rig.create("f", "fsync")
    world.rig.create("d", "disk")
    for turn in range(4):
        world.rig.write("f", 3, tag="ab"[turn % 2])
        world.rig.write("d", 2)
        if turn in (0, 2):
            world.rig.snapshot()
        world.rig.delete("f", match="b")
    world.rig.configure("d", "disk", cap_records=6)
    world.rig.write("d", 1)
    world.rig.sim.sync_all()
    return world


def snapshots(disk: SimFs) -> list[str]:
    return [f"data/meta/{name}" for name in disk.listdir("data/meta")]


def started(disk: SimFs, world: World, **settings: Any) -> dict[str, Seen]:
    """What a start on the disk shows; a second one must show the same."""
    rig = Rig(disk, clock=world.clock, host=world.host, **settings)
    seen = survey(rig.sim)
    disk.kill()
    assert survey(Rig(disk.reboot(), clock=world.clock, host=world.host, **settings).sim) == seen
    return seen


def put(at: int, value: bytes) -> Edit:
    return lambda data: data[:at] + value + data[at + len(value) :]


BROKEN: dict[str, Edit] = {
    "short header": lambda data: data[:11],
    "empty": lambda data: b"",
    "bad magic": put(0, b"SNP9"),
    "version 2": put(4, b"\2"),
    "version 99": put(4, b"\x63"),
    "reserved set": put(12, b"\1"),
    "body_len smaller": lambda data: data[:8] + (int.from_bytes(data[8:12], "little") - 1).to_bytes(4, "little")
    + data[12:],
    "body_len larger": lambda data: data[:8] + (int.from_bytes(data[8:12], "little") + 1).to_bytes(4, "little")
    + data[12:],
    "trailing byte": lambda data: data + b"\0",
    "cut": lambda data: data[:-1],
    "a flipped body byte": lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
}  # fmt: skip


@pytest.mark.parametrize("way", BROKEN)
def test_an_invalid_newest_snapshot_is_passed_over_and_the_state_is_the_same(way: str) -> None:
    """Row 89."""
    world = aged()
    expected = world.seen()
    disk = world.disk.clone()
    disk.tamper(snapshots(disk)[-1], BROKEN[way])
    assert started(disk, world) == expected


def test_the_newest_snapshot_may_become_invalid_at_any_moment_of_a_long_run() -> None:
    """Row 90: no log file that the older one needs was gone."""
    world = World()
    world.rig.create("f", "fsync")
    for turn in range(12):
        world.rig.write("f", 3, size=300)
        world.rig.snapshot()
        if turn % 3 == 2:
            world.rig.delete("f", before_seq=2 * turn)
        twin = world.disk.clone()
        twin.tamper(snapshots(twin)[-1], lambda data: data[:-1])
        assert started(twin, world) == world.seen(), f"turn {turn}"


def test_an_invalid_snapshot_and_a_torn_log_are_handled_in_one_start() -> None:
    """Row 91."""
    world = aged()
    expected = world.seen()
    disk = world.disk.clone()
    disk.tamper(snapshots(disk)[-1], lambda data: data[:-1])
    (log,) = [f"data/wal/{name}" for name in disk.listdir("data/wal") if name.startswith("wal-")][-1:]
    end = len(disk.contents(log).rstrip(b"\0"))
    torn = b"\x50\0\0\0\1\4\2\0\0\0\0"
    disk.tamper(log, lambda data: data[:end] + torn + data[end + len(torn) :])
    assert started(disk, world) == expected
    assert torn not in disk.contents(log), "the torn tail is still there"


def test_without_any_snapshot_a_complete_log_gives_the_same_state() -> None:
    """Row 92."""
    world = World(wal_file_bytes=1 << 16)
    world.rig.create("f", "fsync")
    world.rig.write("f", 5, tag="a")
    world.rig.delete("f", before_seq=3)
    world.rig.snapshot()
    world.rig.write("f", 2)
    expected = world.seen()
    disk = world.disk.clone()
    for path in snapshots(disk):
        disk.tamper(path, lambda data: data[:-1])
    assert started(disk, world, wal_file_bytes=1 << 16) == expected


def trimmed() -> World:
    """A log whose first files are gone, as they are absorbed."""
    world = World()
    world.rig.create("f", "fsync")
    for _ in range(6):
        world.rig.write("f", 4, size=400)
        world.rig.snapshot()
    assert "wal-0000000000000001.log" not in world.disk.listdir("data/wal")
    return world


def test_without_any_snapshot_a_trimmed_log_refuses_the_start_and_changes_no_byte() -> None:
    """Row 93, without salvage."""
    world = trimmed()
    disk = world.disk.clone()
    for path in snapshots(disk):
        disk.tamper(path, lambda data: data[:-1])
    before = disk.dump()
    with pytest.raises(MetadataLost, match="TOPICS_SALVAGE"):
        Rig(disk, clock=world.clock, host=world.host)
    assert disk.dump() == before


def test_only_snapshots_of_an_unknown_version_refuse_the_start_and_change_no_byte() -> None:
    """Row 94."""
    world = aged()
    disk = world.disk.clone()
    for path in snapshots(disk):
        disk.tamper(path, put(4, b"\x63"))
    before = disk.dump()
    with pytest.raises(UnsupportedVersion, match="99"):
        Rig(disk, clock=world.clock, host=world.host)
    assert disk.dump() == before


def test_a_snapshot_that_cannot_be_read_stops_the_start_and_changes_nothing() -> None:
    """Row 98."""
    world = aged()
    expected = world.seen()
    disk = world.disk.clone()
    before = disk.dump()
    faults = FaultFs(disk, record=False)
    faults.fail("pread", snapshots(disk)[-1])
    with pytest.raises((OSError, TopicsError)):
        Rig(faults, clock=world.clock, host=world.host)
    assert disk.dump() == before
    assert started(disk, world) == expected


# --- a start that takes time ------------------------------------------------------------------------------------------


def test_progress_never_falls_and_reaches_one_only_at_the_end() -> None:
    """Row 105."""
    world = World(wal_file_bytes=1 << 12)
    for at in range(8):
        world.rig.create(f"t{at}", "fsync")
        world.rig.write(f"t{at}", 20, size=60)
    disk = world.disk.clone()
    shares: list[float] = []
    settings = Settings.from_kwargs(data_dir="data", wal_shards=1, wal_file_bytes=1 << 12)
    recover(RetryingFs(disk), settings=settings, clock=SimClock(), host=SimHost(), progress=shares.append)
    assert len(set(shares)) > 5  # one for each file of the log
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_until_the_start_is_over_the_server_says_how_far_it_is_and_refuses_data_calls() -> None:
    """Row 105, as a client sees it."""
    app = ServerApp(Settings.from_kwargs(data_dir="data"), keys=None, clock=SimClock(), host=SimHost())
    for share, shown in ((0.0, 0.0), (0.25, 0.25), (0.1, 0.25), (0.75, 0.75)):
        app.report_progress(share)
        status, body = answer(app, "GET", "/v0/ready")
        assert (status, body["error"]["detail"]["replay_progress"]) == (503, shown)
        assert answer(app, "GET", "/v0/health")[0] == 200
        for method, path in (("POST", "/v0/topics/t"), ("GET", "/v0/topics/t"), ("DELETE", "/v0/topics/t")):
            assert answer(app, method, path)[1]["error"]["code"] == NotReady(0.0).code


class Reply:
    """Takes the one answer to a request."""

    def __init__(self) -> None:
        self.response: Response | None = None

    def reply(self, response: Response) -> None:
        self.response = response

    def reply_ok(self, body: bytes) -> None:
        self.reply(Response(200, body))

    def on_close(self, callback: Callable[[], None]) -> None:
        return


def answer(app: ServerApp, method: str, path: str) -> tuple[int, dict[str, Any]]:
    head = RequestHead(method=method, raw_path=path.encode(), query=b"", headers={}, version="1.1")
    request = Request(head)
    request.body = b"{}"
    reply = Reply()
    response = app.app.head(request)
    if response is None:
        app.app.handle(request, reply)  # type: ignore[arg-type]
        response = reply.response
    assert response is not None
    return response.status, json.loads(response.body)


def test_sealed_segments_of_a_memory_topic_are_not_read_before_it_is_ready() -> None:
    """Row 105: they do not hold a start up."""
    world = World()
    world.rig.create("m", "memory")
    world.rig.write("m", 12)
    world.rig.snapshot()
    expected = world.seen()["m"]
    world.disk.kill()
    world.disk = world.disk.reboot()
    faults = FaultFs(world.disk, record=False)
    unreadable = faults.fail(("pread", "mmap"), "*/topics/*/seg-*.data", times=1000)
    rig = Rig(faults, clock=world.clock, host=world.host)
    assert unreadable.hits == 0
    unreadable.lift()
    assert read_all(rig.sim, "m") == expected


def test_salvage_keeps_the_records_of_a_topic_that_only_its_log_frames_name() -> None:
    """Row 93, with salvage."""
    world = trimmed()
    expected = world.seen()["f"]
    disk = world.disk.clone()
    for path in snapshots(disk):
        disk.tamper(path, lambda data: data[:-1])
    files = set(disk.dump())
    rig = Rig(disk, clock=world.clock, host=world.host, salvage=True)
    (name,) = rig.sim.engine.state.topics
    assert int(name.removeprefix("recovered:"), 16) == 1
    assert read_all(rig.sim, name).records == expected.records
    rig.snapshot()
    assert files <= set(disk.dump()), "a salvage run deleted something"


def test_salvage_adopts_a_directory_of_which_the_log_knows_nothing() -> None:
    """Row 93, with salvage."""
    world = trimmed()
    expected = world.seen()["f"]
    disk = world.disk.clone()
    without_metadata(disk)
    without_log(disk)
    rig = Rig(disk, clock=world.clock, host=world.host, salvage=True)
    found = read_all(rig.sim, "recovered:00000001")
    assert found.records == expected.records
    rig.snapshot()
    disk.kill()
    later = Rig(disk.reboot(), clock=world.clock, host=world.host)
    assert read_all(later.sim, "recovered:00000001") == found, "the next start needs no salvage"


def without_metadata(disk: SimFs) -> None:
    for path in snapshots(disk):
        disk.erase(path)


def without_log(disk: SimFs) -> None:
    for name in disk.listdir("data/wal"):
        disk.erase(f"data/wal/{name}")


def young() -> World:
    """A topic that only the log describes, with a sealed and an active segment."""
    world = World(wal_file_bytes=65_536)
    world.rig.create("f", "fsync")
    world.rig.write("f", 6)
    world.rig.sim.checkpoint()
    return world


def spoil_first_topic(disk: SimFs) -> None:
    log = "data/wal/wal-0000000000000001.log"
    at = disk.contents(log).index(b"created_ts")
    disk.tamper(log, put(at, b"C"))


@pytest.mark.parametrize("lose", [without_log, spoil_first_topic])
def test_a_topic_of_which_the_log_has_lost_the_beginning_is_kept_under_a_name_of_its_own(
    lose: Callable[[SimFs], None],
) -> None:
    world = young()
    expected = world.seen()["f"].records
    world.disk.kill()
    disk = world.disk.reboot()
    lose(disk)
    rig = Rig(disk, clock=world.clock, host=world.host)
    assert read_all(rig.sim, "recovered:00000001").records == expected
    rig.create("f", "fsync")
    rig.write("f", 1)
    for snapshot in (False, True):
        if snapshot:
            rig.snapshot()
        disk.kill()
        disk = disk.reboot()
        rig = Rig(disk, clock=world.clock, host=world.host)
        assert read_all(rig.sim, "recovered:00000001").records == expected
        assert len(read_all(rig.sim, "f").records) == 1


def test_no_id_is_given_again_whose_directory_waits_for_its_removal() -> None:
    world = young()
    world.disk.kill()
    disk = world.disk.reboot()
    disk.mkdir("data/topics/00000005.deleted")
    rig = Rig(disk, clock=world.clock, host=world.host)
    rig.create("new", "fsync")
    assert rig.sim.engine.state.topic("new").id == 6


@pytest.mark.parametrize("shards", [1, 2])
def test_a_group_that_the_snapshot_knows_and_the_disk_does_not_is_reported_and_its_numbers_are_passed(
    shards: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Row 95, with the whole group gone."""
    world = World(wal_shards=shards)
    world.rig.create("f", "fsync")
    world.rig.write("f", 6)
    world.rig.snapshot()
    world.disk.kill()
    disk = world.disk.reboot()
    for path in [path for path in disk.dump() if path.startswith("data/wal/")]:
        disk.erase(path)
    for name in disk.listdir("data/wal"):
        disk.rmdir(f"data/wal/{name}")
    rig = Rig(disk, world.rig.ledger, clock=world.clock, host=world.host, wal_shards=shards)
    assert caplog.text.count("lies behind the end of the log") == shards
    assert len(read_all(rig.sim, "f").records) == 6
    rig.write("f", 2)
    disk.kill()
    rig = Rig(disk.reboot(), clock=world.clock, host=world.host, wal_shards=shards)
    assert len(read_all(rig.sim, "f").records) == 8


def test_salvage_announces_what_is_missing_between_the_segments_it_finds() -> None:
    """Row 93, with salvage."""
    world = trimmed()
    expected = world.seen()["f"].records
    disk = world.disk.clone()
    without_metadata(disk)
    without_log(disk)
    for first in (1, 9):  # four records each
        for part in ("data", "idx"):
            disk.erase(f"data/topics/00000001/seg-{first:016d}.{part}")
    rig = Rig(disk, clock=world.clock, host=world.host, salvage=True)
    found = read_all(rig.sim, "recovered:00000001")
    gone = {1, 2, 3, 4, 9, 10, 11, 12}
    assert found.records == {seq: token for seq, token in expected.items() if seq not in gone}
    assert {seq for seq in expected if found.announced(seq)} == gone


def test_salvage_keeps_the_whole_records_of_an_end_that_no_mark_covers() -> None:
    """Row 93, with salvage: what a start would cut and refill from the log is all there is."""
    world = trimmed()
    expected = world.seen()["f"].records
    disk = world.disk.clone()
    without_metadata(disk)
    without_log(disk)
    disk.tamper("data/topics/00000001/seg-0000000000000021.data", lambda data: data[:-5])
    before = disk.dump()
    rig = Rig(disk, clock=world.clock, host=world.host, salvage=True)
    name = "recovered:00000001"
    whole = rig.call(lambda engine: engine.read(name, ReadRequest(from_seq=0, limit=23))).outcome
    assert [stored.seq for run in whole.runs for stored in run.records()] == sorted(expected)[:-1]
    with pytest.raises(CorruptSegment):
        rig.call(lambda engine: engine.read(name, ReadRequest(from_seq=23, limit=1)))
    assert set(before) <= set(disk.dump())


def test_salvage_brings_back_no_record_and_no_topic_that_the_log_says_is_deleted() -> None:
    """Row 93, with salvage."""
    world = trimmed()
    world.rig.create("g", "fsync")
    world.rig.write("g", 3)
    world.rig.snapshot()
    world.rig.snapshot()
    world.rig.write("f", 2, tag="late")
    world.rig.delete("f", match="late")
    world.rig.delete("f", before_seq=3)
    expected = world.seen()["f"].records
    world.faults.fail("rename", "*/topics/*", times=100)
    world.rig.drop("g")
    disk = world.disk.clone()
    assert "00000002" in disk.listdir("data/topics")
    without_metadata(disk)
    rig = Rig(disk, clock=world.clock, host=world.host, salvage=True)
    assert list(rig.sim.engine.state.topics) == ["recovered:00000001"]
    assert read_all(rig.sim, "recovered:00000001").records == expected


def test_salvage_finds_the_segments_that_are_in_the_cold_store() -> None:
    """Row 93, with salvage."""
    settings: dict[str, Any] = {"cold_dir": "cold", "hot_retain_segments": 1}
    world = World(**settings)
    world.rig.create("f", "fsync")
    world.rig.write("f", 22)
    for _ in range(4):
        world.rig.snapshot()
        world.rig.tick(10_000)
        world.rig.write("f", 4, size=400)
    expected = world.seen()["f"].records
    world.rig.snapshot()
    disk = world.disk.clone()
    assert len(disk.listdir("cold/topics/00000001")) >= 6
    without_metadata(disk)
    without_log(disk)
    rig = Rig(disk, clock=world.clock, host=world.host, salvage=True, **settings)
    assert read_all(rig.sim, "recovered:00000001").records == expected
    rig.snapshot()
    disk.kill()
    later = Rig(disk.reboot(), clock=world.clock, host=world.host, **settings)
    later.tick(10_000)
    assert read_all(later.sim, "recovered:00000001").records == expected


def test_the_padded_name_of_a_snapshot_counts_and_a_stray_temp_is_removed() -> None:
    """Row 96."""
    world = aged()
    expected = world.seen()
    disk = world.disk.clone()
    newest = snapshots(disk)[-1]
    number = int(newest.split(".")[1])
    disk.plant(f"data/meta/snapshot.{number}.bin", b"SNP1 of somebody else")
    disk.plant(f"{newest}.tmp", b"half of a snapsh")
    assert started(disk, world) == expected
    disk = disk.reboot()
    assert f"{newest}.tmp" not in snapshots(disk)
    assert disk.contents(f"data/meta/snapshot.{number}.bin") == b"SNP1 of somebody else"


@pytest.mark.parametrize("shards", [(1, 3), (3, 2)])
def test_another_shard_count_after_any_crash_in_a_snapshot_that_then_turns_out_invalid(shards: tuple[int, int]) -> None:
    """Row 139: the older snapshot and both layouts give the state of the moment."""
    world = World(wal_shards=shards[0])
    for name in ("f", "g", "h"):
        world.rig.create(name, "fsync")
        world.rig.write(name, 3, tag="x")
    world.rig.snapshot()
    world.rig.delete("g", match="x")
    world.rig.write("f", 2)
    expected = world.seen()
    patterns = ("lose_all", "random")
    states = list(crash_states(world.disk, lambda fs: snapshot_on(world, fs), rng=Random(1), patterns=patterns))
    assert len(states) > 20
    for state in states:
        host = SimHost() if state.how == "kill" else SimHost("boot-2")
        rig = Rig(state.disk, world.rig.ledger.copy(), clock=world.clock, host=host, wal_shards=shards[1])
        assert survey(rig.sim) == expected, str(state)
        rig.write("h", 1)
        rig.snapshot()
        rig.write("h", 1)
        after = survey(rig.sim)
        state.disk.kill()
        disk = state.disk.reboot()
        disk.tamper(snapshots(disk)[-1], lambda data: data[:-1])
        assert survey(Rig(disk, clock=world.clock, host=host, wal_shards=shards[1]).sim) == after, str(state)


def snapshot_on(world: World, fs: Fs) -> None:
    """Go on with the engine of `world`, every call of which now passes through `fs`."""
    assert isinstance(fs, FaultFs)
    world.faults.hook = fs.hook
    world.rig.snapshot()
