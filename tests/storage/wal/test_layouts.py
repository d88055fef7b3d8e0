"""Changing the shard count: generations, numbers and left-over groups (`docs/spec/storage.md#sec-9-5`).

Rows 137 to 142 of `docs/fault-matrix.md`, as far as they concern the log.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from tests.storage.wal.rig import FLAT, Log, Model, new_log

from topics.formats.file_names import group_keys
from topics.storage.wal.file_scan import newest_layout
from topics.storage.wal.rotation import Layout
from topics.testing import CrashPoints, SimCrash, SimFs


def change(log: Log, shards: int) -> Log:
    log.shards = shards
    return log.crash().restart().checked()


@pytest.mark.parametrize("counts", [(1, 8), (8, 1), (3, 7), (4, 2, 4), (2, 2, 3)])
def test_every_count_reads_what_every_other_count_wrote(counts: tuple[int, ...]) -> None:
    log = new_log(shards=counts[0])
    gens = []
    for shards in counts:
        log = change(log, shards)
        gens.append(log.layout.gen)
        for key in group_keys(shards):
            log.send(2, key=key)
            log.send(1, key=key)
    log = log.crash().twice()
    changes = sum(a != b for a, b in pairwise(counts))
    assert gens[-1] == 1 + changes
    by_gen = {gen for scan in log.scans.values() for gen in [scanned.gen for scanned in scan.files]}
    assert by_gen == set(range(1, gens[-1] + 1))


def test_a_group_that_is_used_again_goes_on_in_a_new_file_with_the_next_number() -> None:
    log = new_log(shards=4)
    log.send(3, key="shard-01")
    log = change(log, 2)
    assert log.numbers("shard-01") == [1, 5]
    log.send(2, key="shard-01")
    log = change(log, 4)
    assert log.numbers("shard-01") == [1, 5, 8]
    assert [scanned.gen for scanned in log.scans["shard-01"].files] == [1, 2]
    assert log.numbers("shard-03") == [1, 2]
    log.crash().twice()


def test_the_generation_is_the_highest_seen_and_the_next_one_when_its_count_differs() -> None:
    assert newest_layout([], None, shards=4) == (1, 4)
    assert newest_layout([], Layout(3, 4), shards=4) == (3, 4)
    assert newest_layout([], Layout(3, 4), shards=2) == (4, 2)


def test_a_generation_is_not_used_again_for_another_count_after_a_crash_in_the_first_start() -> None:  # row 142
    log = new_log(shards=1)
    log.send(3)
    log.shards = 3
    log.crash()
    attempt = log.next()
    points = CrashPoints(attempt.disk)
    attempt.faults.hook = points.before
    attempt.start()
    points.end()
    for state in points.states(rng=Random(1), patterns=("lose_all", "reorder", "random")):
        for shards in (1, 2, 3):
            after = Log(state.disk.clone(), Model({FLAT: [*log.model.sent[FLAT]]}), shards=shards).start().checked()
            used = {layout for scan in after.scans.values() for layout in scan.layouts} | {after.layout}
            assert len({layout.gen for layout in used}) == len(used), (state, used)
            for key in after.groups:
                after.send(1, key=key)
            after.crash().twice()


def test_a_crash_at_any_call_of_a_rotation_and_then_another_count_makes_no_number_clash() -> None:  # row 140
    log = new_log(shards=2)
    while log.groups["shard-00"].fits(300):
        log.send(3, key="shard-00")
    points = CrashPoints(log.disk)
    log.faults.hook = points.before
    log.groups["shard-00"].rotate()
    points.end()
    for state in points.states(rng=Random(1), patterns=("lose_all", "reorder")):
        model = Model({key: [*sents] for key, sents in log.model.sent.items()})
        after = Log(state.disk, model, shards=4).start().checked()
        assert after.layout.gen == 2
        assert len(set(after.numbers("shard-00"))) == len(after.numbers("shard-00"))
        for key in after.groups:
            after.send(2, key=key)
        after.crash().twice()


def test_a_group_without_a_position_replays_only_what_the_snapshot_generation_still_needs() -> None:
    log = new_log(shards=2)
    log.send(2, key="shard-01")
    log = change(log, 3)
    sent = log.send(1, key="shard-01")[0]
    log.snapshot = Layout(2, 3)
    after = log.crash().restart()
    assert after.found("shard-01") == [sent.data]
    assert [file.number for file in after.scans["shard-01"].passed] == [1]


def test_a_shard_directory_made_by_a_process_that_was_killed_is_durable_before_anything_is_acked_in_it() -> None:
    log = Log(SimFs(), shards=2)
    log.faults.hook = lambda call: (
        log.faults.crash() if (call.kind, call.path) == ("mkdir", "data/wal/shard-01") else None
    )
    with pytest.raises(SimCrash):
        log.start()
    assert log.disk.is_dir("data/wal/shard-01")
    after = log.kill().restart()
    after.send(2, key="shard-01")
    assert len(after.crash("lose_all").twice().found("shard-01")) == 1
