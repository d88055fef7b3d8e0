"""A server that loses whole segments and is killed tells every reader of the same records, each once.

A real server with caps, TTL and deletes is killed again and again. After every start its manifest, the table over it,
a stream that goes on from its offset and the table over the bare directory must agree with a full diff.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.compute as pc
import pytest
from tests.spark.served import Served
from tests.spark.test_live_histories import read
from tests.spark.test_url_reads import rows_in
from tests.spark.world import read_tasks

from topics.client.routes import SEGMENTS
from topics.errors import Internal
from topics.spark.logs.directory import DirectoryLog
from topics.spark.logs.log import LogAddress
from topics.spark.logs.server_log import ServerLog, cut_from_manifest
from topics.spark.option_values import TopicChoice
from topics.spark.options import read_options
from topics.spark.planning.stream import StreamPlanner

CONFIGS: dict[str, dict[str, Any]] = {
    "capped": {"cap_records": 500},
    "bytes": {"cap_bytes": 30_000},
    "tagged": {},
    "short": {"ttl_ms": 1_500},
}
KILLS = 4


class Follower:
    """A stream over all topics that goes on from its offset, whatever happens to the server."""

    def __init__(self, served: Served) -> None:
        given = {"url": served.url, "subscribe": ",".join(CONFIGS), "startingOffsets": "earliest", "onDataLoss": "rows"}
        self.options = read_options(given, streaming=True)
        self.planner = StreamPlanner(self.options)
        self.offset = self.planner.initial()
        self.given: dict[str, set[int]] = {name: set() for name in CONFIGS}
        self.told: dict[str, set[int]] = {name: set() for name in CONFIGS}

    def follow(self, rows_max: int | None = None, between: Callable[[], None] = lambda: None) -> None:
        """One batch; `between` happens after it is planned and before it is read."""
        end = self.planner.latest(self.offset, rows_max=rows_max, bytes_max=None)
        tasks = self.planner.tasks(self.offset, end)
        between()
        for row in read_tasks(tasks, self.options).to_pylist():
            if row["kind"] == "record":
                assert row["seq"] not in self.given[row["topic"]], f"{row['topic']}: seq {row['seq']} came twice"
                self.given[row["topic"]].add(row["seq"])
            else:
                self.told[row["topic"]] |= set(range(row["gap_from"], row["gap_to"] + 1))
        self.offset = end

    def run_to_the_end(self) -> None:
        """What `Trigger.AvailableNow` does: the target is fixed, and batches go on until it is reached."""
        self.planner.fix_target()
        before = None
        while before != self.offset:
            before = self.offset
            self.follow(rows_max=333)

    def close(self) -> None:
        self.planner.close()


class History:
    """Writes and deletes that make whole segments go."""

    def __init__(self, served: Served, seed: int) -> None:
        self.served = served
        self.rng = random.Random(seed)
        self.deleted: dict[str, set[int]] = {name: set() for name in CONFIGS}
        self.heads = dict.fromkeys(CONFIGS, 0)
        for name, config in CONFIGS.items():
            served.put(name, **config)

    def go_on(self) -> None:
        self.write()
        self.wait_for_segments_to_go()

    def write(self) -> None:
        for name in CONFIGS:
            for _ in range(self.rng.randint(4, 5)):
                count = self.rng.choice((157, 200, 200, 260))
                self.served.write(name, *({"n": n} for n in range(count)), tag=f"t{self.rng.randint(0, 3)}")
                self.heads[name] += count

    def delete(self) -> None:
        for selector in ({"match": f"t{self.rng.randint(0, 3)}"}, {"before_seq": self.heads["tagged"] // 3}):
            before = {row[0] for row in self.served.rows("tagged")}
            self.served.delete("tagged", **selector)
            self.deleted["tagged"] |= before - {row[0] for row in self.served.rows("tagged")}

    def wait_for_segments_to_go(self) -> None:
        """Until no file of the front is left, so that the log has frames of segments that nobody has any more."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            told = self.served.segments("capped")
            files = Path(self.served.data_dir, "topics", f"{told['topic_id']:08X}").glob("seg-*.data")
            firsts = [int(file.stem.removeprefix("seg-")) for file in files]
            if firsts and min(firsts) > told["earliest_seq"] - 100:
                return
            time.sleep(0.05)
        raise AssertionError("no segment was dropped")


def check_manifest(served: Served, name: str) -> None:
    """Disjoint, ascending, and every live record in one block and counted there."""
    for _ in range(50):  # a look between which a TTL took something compares nothing
        before, told, rows = served.rows(name), served.segments(name), served.rows(name)
        if before == rows:
            break
    spans = [(block["first_seq"], block["last_seq"]) for block in told["segments"]]
    assert all(one[1] < two[0] for one, two in pairwise(spans)), f"{name}: {spans}"
    held = [sum(lo <= row[0] <= hi for row in rows) for lo, hi in spans]
    assert held == [block["count"] for block in told["segments"]], f"{name}: {told['segments']} hold {held}"
    assert sum(held) == len(rows), f"{name}: {spans} hold {sum(held)} of {len(rows)}"


def check(served: Served, name: str) -> None:
    check_manifest(served, name)
    for mode in ("url", "path"):
        for _ in range(50):
            before, table, rows = served.rows(name), read(served, mode, name), served.rows(name)
            if before == rows:
                break
        assert rows_in(table.filter(pc.equal(table["kind"], "record"))) == rows, (name, mode)


@pytest.mark.parametrize("seed", [1, 2])
def test_after_every_kill_each_record_is_read_once(tmp_path: Path, seed: int) -> None:
    served = Served(tmp_path, segment_max_events="100", snapshot_interval_ms="600000")
    history = History(served, seed)
    follower = Follower(served)
    try:
        for _ in range(KILLS):
            history.go_on()
            follower.follow()
            history.delete()
            if history.rng.random() < 0.5:
                follower.follow()
            served.kill()
            served.start()
            for name in CONFIGS:
                check(served, name)
            follower.follow()
        for name in CONFIGS:
            known = follower.given[name] | follower.told[name] | history.deleted[name]
            assert set(range(1, history.heads[name] + 1)) <= known, f"{name}: a record came in no batch"
    finally:
        follower.close()
        served.stop()


def test_a_run_to_the_end_gives_each_record_once_while_segments_go(tmp_path: Path) -> None:
    """Writers, caps, deletes, checkpoints and moves to the cold tier go on while a stream and manifests are read."""
    settings = {"cold_dir": str(tmp_path / "cold"), "hot_retain_segments": "1", "rewrite_min_dead_bytes": "1"}
    served = Served(tmp_path, segment_max_events="100", **settings)
    history = History(served, 5)
    follower = Follower(served)
    over, failures = threading.Event(), list[BaseException]()

    def go_on() -> None:
        try:
            while not over.is_set():
                history.write()
                history.delete()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        for _ in range(4):
            follower.run_to_the_end()
            for name in CONFIGS:
                cut_from_manifest(served.segments(name))  # refuses blocks that overlap
        over.set()
        thread.join(60)
        follower.run_to_the_end()
        assert not failures
        for name in CONFIGS:
            known = follower.given[name] | follower.told[name] | history.deleted[name]
            assert set(range(1, history.heads[name] + 1)) <= known, f"{name}: a record came in no batch"
    finally:
        over.set()
        thread.join(60)
        follower.close()
        served.stop()


def test_a_batch_that_was_planned_before_a_kill_is_read_after_it(tmp_path: Path) -> None:
    served = Served(tmp_path, segment_max_events="100", snapshot_interval_ms="600000")
    history = History(served, 7)
    follower = Follower(served)

    def killed_and_smaller() -> None:
        served.kill()
        served.start()
        history.write()
        history.delete()
        history.wait_for_segments_to_go()

    try:
        history.go_on()
        follower.follow(rows_max=900)
        for _ in range(2):
            follower.follow(between=killed_and_smaller)
        follower.follow()
        for name in CONFIGS:
            known = follower.given[name] | follower.told[name] | history.deleted[name]
            assert set(range(1, history.heads[name] + 1)) <= known, f"{name}: a record came in no batch"
    finally:
        follower.close()
        served.stop()


def live_seqs(data_dir: str, name: str) -> tuple[tuple[int, int, int], list[int]]:
    log = DirectoryLog(LogAddress(path=data_dir))
    cut = log.cuts(TopicChoice((name,)), now_ms=0)[name]
    topic = log._topics[name]
    seqs = [seq for seq in range(cut.earliest_seq, cut.end_seq) if topic.live(seq)]
    return (cut.head_seq, cut.earliest_seq, cut.evict_floor), seqs


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_directory_tells_what_its_server_told(tmp_path: Path, how: str) -> None:
    served = Served(tmp_path, segment_max_events="100", snapshot_interval_ms="600000")
    try:
        history = History(served, 3)
        history.go_on()
        history.delete()
        served.kill()
        served.start()
        names = [name for name in CONFIGS if "ttl_ms" not in CONFIGS[name]]
        with closing(ServerLog(LogAddress(url=served.url))) as log:
            cuts = log.cuts(TopicChoice(tuple(names)), now_ms=0)
        rows = {name: [row[0] for row in served.rows(name)] for name in names}
        served.stop() if how == "stopped" else served.kill()
        for name in names:
            cut = cuts[name]
            found = live_seqs(served.data_dir, name)
            assert found == ((cut.head_seq, cut.earliest_seq, cut.evict_floor), rows[name]), name
    finally:
        served.stop()


# --- readers do not believe everything --------------------------------------------------------------------------------

OVERLAPPING = [(40_001, 50_000, "sealed"), (1, 60_000, "active")]


def manifest(blocks: list[tuple[int, int, str]]) -> dict[str, Any]:
    shared = {"min_ts": 1, "max_ts": 2, "bytes": 10, "tier": "hot", "count": 1, "dead": []}
    rows = [{"first_seq": lo, "last_seq": hi, "state": state, **shared} for lo, hi, state in blocks]
    facts = {"topic": "orders", "topic_id": 1, "epoch": 1, "head_seq": 60_000, "earliest_seq": 1, "evict_floor": 1}
    return {**facts, "evict_reason": None, "lost": [], "segments": rows}


@pytest.mark.parametrize(
    "blocks",
    [OVERLAPPING, OVERLAPPING[::-1], [(1, 10, "sealed"), (10, 20, "active")], [(5, 4, "active")]],
    ids=["below", "around", "touching", "empty"],
)
def test_a_manifest_whose_blocks_overlap_is_refused_in_one_sentence(blocks: list[tuple[int, int, str]]) -> None:
    told = manifest(blocks)
    sentence = r"^the blocks of topic 'orders' are not in order: .*; nothing was read$"
    with pytest.raises(Internal, match=sentence):
        cut_from_manifest(told)
    with pytest.raises(Internal, match=sentence):
        SEGMENTS.call("orders", None).decode(msgspec.json.encode(told))


def test_a_manifest_in_order_is_taken() -> None:
    cut = cut_from_manifest(manifest([(1, 10, "sealed"), (15, 20, "active"), (21, 30, "sealed"), (31, 31, "active")]))
    assert [block.end_seq for block in cut.blocks] == [11, 21, 31, 32]
