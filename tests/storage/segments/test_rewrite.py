"""Rewrite of partly deleted segments (fault matrix 122 and 123)."""

from __future__ import annotations

import errno
from fnmatch import fnmatch
from typing import Any

import numpy as np
import pytest
from tests.storage.segments.lab import DIR, Lab, crashes, data_path, flip_bit, idx_path, new_lab

from topics.model.names import TagMatch
from topics.storage.fetch import SealedRead
from topics.storage.fs import read_file
from topics.storage.segments.rewrite import RewriteRules, rewrite
from topics.testing.powercut import KeepAll


def half_dead(lab: Lab | None = None) -> Lab:
    """Sealed 1..5 with 2, 3 and 5 deleted and absorbed; active 6."""
    lab = lab or new_lab()
    return lab.append(5, tag="a").append(1).checkpoint().delete(2, 3, 5).snapshot().trim_wal()


def dead_of(lab: Lab) -> Any:
    return np.array([lab.is_dead(seq) for seq in range(1, 6)])


def rewritten(lab: Lab) -> Lab:
    assert rewrite(lab.segment(1), dead_of(lab))
    return lab


def test_a_rewrite_drops_deleted_bytes_and_keeps_every_slot() -> None:
    lab = half_dead()
    data, pair = read_file(lab.fs, data_path(1)), lab.segment(1).pair()
    frames = [data[at : at + n] for at, n in zip(pair.offs.tolist(), pair.lens.tolist(), strict=True)]
    rewritten(lab)
    assert read_file(lab.fs, data_path(1)) == frames[0] + frames[3]
    assert lab.segment(1).lens.tolist() == [len(frames[0]), 0, 0, len(frames[3]), 0]
    assert lab.segment(1).flags.tolist() == [1, 4, 4, 1, 4]
    assert lab.segment(1).data_len == len(frames[0] + frames[3])
    assert lab.env.counters.rewritten == 1
    lab.power_cut().checked()


def test_a_rewrite_renews_the_sidecar() -> None:
    lab = rewritten(half_dead())
    assert lab.segment(1).tag_slots(TagMatch("Eq", "a")).tolist() == [0, 3]
    assert lab.restart().segment(1).sizes(0, 5).tolist()[1:3] == [0, 0]


def test_a_segment_can_be_rewritten_again() -> None:
    lab = rewritten(half_dead())
    lab.delete(4)
    rewritten(lab)
    assert lab.segment(1).lens.tolist()[3] == 0
    lab.snapshot().power_cut().checked()


# --- 122: every call ------------------------------------------------------------------------------------------------


def test_a_crash_at_every_call_of_a_rewrite_leaves_the_same_live_set() -> None:
    states = 0
    for state, lab in crashes(half_dead, rewritten):
        states += 1
        assert lab.served() == lab.log.live(), state
        assert lab.segment(1).count == 5
        again = rewritten(lab.checked())
        again.checked()
    assert states > 40


@pytest.mark.parametrize("survives", ["data", "idx"])
def test_a_power_cut_that_keeps_one_of_the_two_renames_is_put_right(survives: str) -> None:
    class OneRename(KeepAll):
        def names(self, pending: Any) -> Any:
            return [change for change in pending if change.kind != "rename" or change.name.endswith(survives)]

    lab = half_dead().restart()
    lab.faults.fail("sync_dir", DIR, at=2)
    with pytest.raises(OSError):
        rewritten(lab)
    lab.power_cut(OneRename()).checked()


@pytest.mark.parametrize("names", [["data"], ["idx"], ["data", "idx"]])
def test_temps_of_an_interrupted_rewrite_are_removed(names: list[str]) -> None:
    lab = half_dead()
    for part in names:
        lab.disk.plant(f"{DIR}/seg-0000000000000001.{part}.tmp", b"half")
    again = lab.restart()
    assert not [name for name in again.names() if name.endswith(".tmp")]
    again.checked()


# --- 123: failures, deletes and readers meanwhile -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["create", "pwrite", "fsync", "rename", "sync_dir"])
@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_rewrite_that_fails_leaves_a_segment_that_serves_the_same(kind: str, at: int, code: int) -> None:
    lab = half_dead().restart()
    lab.faults.fail(kind, "*", code=code, at=at)  # type: ignore[arg-type]
    with pytest.raises(OSError):
        rewritten(lab)
    lab.faults.clear()
    assert lab.served() == lab.log.live()
    lab.delete(4)
    assert lab.served() == lab.log.live()
    lab.snapshot()
    assert not lab.log.dead
    again = lab.power_cut().checked()
    rewritten(again).checked()


def test_a_rewrite_that_fails_before_its_renames_leaves_the_files_as_they_were() -> None:
    lab = half_dead().restart()
    before = lab.files()
    lab.faults.fail("fsync", "*.idx.tmp")
    with pytest.raises(OSError):
        rewritten(lab)
    assert lab.files() == before


@pytest.mark.parametrize("moment", ["*.data.tmp", "*.idx.tmp", "data/topics/*"])
def test_a_delete_during_a_rewrite_is_flagged_in_the_new_copy(moment: str) -> None:
    lab = half_dead().restart()
    dead = dead_of(lab)
    done: list[int] = []

    def strike(call: Any) -> None:
        if call.kind in ("fsync", "sync_dir") and fnmatch(call.path, moment) and not done:
            done.append(4)
            lab.delete(4)

    lab.faults.hook = strike
    assert rewrite(lab.segment(1), dead)
    lab.faults.hook = None
    assert done == [4]
    assert lab.served() == lab.log.live()
    lab.snapshot().trim_wal()
    assert not lab.log.dead
    assert 4 not in lab.power_cut().checked().served()


@pytest.mark.parametrize(("gone", "seq"), [((2, 3, 5), 4), ((1,), 2)])
@pytest.mark.parametrize("nth", range(1, 12))
def test_a_delete_at_any_call_of_a_rewrite_hits_its_record_and_no_other(
    nth: int, gone: tuple[int, ...], seq: int
) -> None:
    lab = new_lab().append(5).append(1).checkpoint().delete(*gone).snapshot().trim_wal().restart()
    dead = dead_of(lab)
    calls = 0

    def strike(call: Any) -> None:
        nonlocal calls
        if call.kind in ("create", "pwrite", "fsync", "datasync", "rename", "sync_dir"):
            calls += 1
            if calls == nth:
                lab.delete(seq)

    lab.faults.hook = strike
    assert rewrite(lab.segment(1), dead)
    lab.faults.hook = None
    assert lab.served() == lab.log.live()
    lab.snapshot().trim_wal()
    assert not lab.log.dead
    lab.power_cut().checked()


def test_a_reader_of_the_old_mapping_gets_the_old_bytes() -> None:
    lab = half_dead().restart()
    run = lab.fetcher.fetch([SealedRead(lab.segment(1), range(5))]).runs[0]
    before = list(run.records())
    ts, lens = lab.segment(1).ts, lab.segment(1).lens.copy()
    rewritten(lab)
    lab.delete(1).snapshot()
    assert list(run.records()) == before
    assert len(ts) == len(lens)


def test_a_damaged_segment_is_not_rewritten() -> None:
    lab = half_dead()
    lab = lab.tamper(data_path(1), flip_bit(35)).restart()
    before = lab.files()
    assert not rewrite(lab.segment(1), dead_of(lab))
    assert lab.segment(1).damaged
    assert lab.files() == before


def test_only_deleted_bytes_make_a_candidate() -> None:
    lab = half_dead()
    segment, dead = lab.segment(1), dead_of(lab)
    assert RewriteRules(min_dead_bytes=1).wants(segment, dead)
    assert not RewriteRules(min_dead_bytes=1).wants(segment, np.zeros(5, np.bool_))
    assert not RewriteRules(min_dead_bytes=1, dead_ratio=0.7).wants(segment, dead)
    assert not RewriteRules(min_dead_bytes=1, dead_ratio=0).wants(segment, dead)
    assert not RewriteRules().wants(segment, dead)


def test_the_rate_limit_is_told_of_every_byte() -> None:
    lab = half_dead()
    told: list[int] = []
    assert rewrite(lab.segment(1), dead_of(lab), throttle=told.append)
    assert sum(told) == lab.segment(1).data_len


def test_one_job_at_a_time_changes_a_segment() -> None:
    lab = half_dead()
    with lab.segment(1).flips.working:
        assert not rewrite(lab.segment(1), dead_of(lab))
    assert idx_path(1) in lab.files()
