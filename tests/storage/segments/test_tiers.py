"""Two tiers on folders: stores, relocation, resolution, cold reads (fault matrix J, local store)."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import pytest
from tests.storage.segments.lab import COLD, DIR, Lab, crashes, data_path, flip_bit, idx_path, new_lab, tags_path

from topics.errors import ColdStoreMismatch, ColdUnavailable, StorageIo
from topics.model.names import TagMatch
from topics.storage.fetch import SealedRead
from topics.storage.segments.replace import drop_cold_copy, drop_segment
from topics.storage.segments.rewrite import rewrite
from topics.storage.tiers.cold_cache import BLOCK_BYTES, ColdCache
from topics.storage.tiers.relocate import delete_hot, flush_cold_flips, plan_moves, promote, relocate
from topics.storage.tiers.stores import LocalStore, NoSuchObject, RangeOutOfBounds, cold_owner, write_owner
from topics.testing import FOREVER, FaultFs, SimFs

COLD_DIR = f"{COLD}/0000000A"
COLD_DATA = f"{COLD_DIR}/seg-0000000000000001.data"
COLD_IDX = f"{COLD_DIR}/seg-0000000000000001.idx"


def six(lab: Lab | None = None) -> Lab:
    """Sealed 1..5 hot, active 6; the log has forgotten 1..5."""
    lab = lab or new_lab(cold=True)
    return lab.append(5, tag="a").append(1).checkpoint().snapshot().trim_wal()


def moved(lab: Lab) -> Lab:
    assert relocate(lab.segment(1), lab.log_tier_mark)
    return lab


# --- the store ------------------------------------------------------------------------------------------------------


def test_a_store_keeps_both_parts_and_gives_exact_ranges() -> None:
    store = LocalStore(SimFs(), "cold/topics/00000001")
    assert store.list() == store.list_any() == []
    store.put(7, b"data", b"index")
    assert store.list() == [7]
    assert store.read_range(7, "data", 1, 3) == b"ata"
    assert (store.len(7, "data"), store.len(7, "idx")) == (4, 5)
    with pytest.raises(RangeOutOfBounds):
        store.read_range(7, "data", 2, 3)
    with pytest.raises(NoSuchObject):
        store.read_range(8, "data", 0, 1)
    with pytest.raises(NoSuchObject):
        store.len(8, "idx")


def test_a_store_lists_half_a_segment_only_for_clean_up() -> None:
    fs = SimFs()
    store = LocalStore(fs, "cold")
    store.put(1, b"a", b"b")
    store.put(12, b"a", b"b")
    fs.unlink("cold/seg-0000000000000001.data")
    fs.plant("cold/notes", b"")
    assert (store.list(), store.list_any()) == ([12], [1, 12])
    assert (store.exists(1, "data"), store.exists(1, "idx")) == (False, True)
    store.delete(1)
    store.delete(1)
    store.delete(99)
    assert store.list_any() == [12]


def test_a_put_is_durable_and_replaces_whole() -> None:
    fs = SimFs()
    store = LocalStore(fs, "cold/t")
    store.put(1, b"old", b"idx")
    store.put(1, b"newer", b"idx2")
    fs.power_cut()
    again = LocalStore(fs.reboot(), "cold/t")
    assert (again.read_range(1, "data", 0, 5), again.read_range(1, "idx", 0, 4)) == (b"newer", b"idx2")


def test_data_goes_in_first_and_comes_out_first() -> None:
    fs = FaultFs(SimFs())
    store = LocalStore(fs, "cold")
    store.put(1, b"data", b"idx")
    store.delete(1)
    names = [call.path.rpartition(".")[2] for call in fs.trace if call.kind in ("rename", "unlink")]
    assert names == ["data", "idx", "data", "idx"]


# --- 125: every call ------------------------------------------------------------------------------------------------


def test_a_segment_moves_and_is_served_from_cold() -> None:
    lab = six()
    before = lab.files()
    moved(lab)
    after = lab.files()
    assert after[COLD_DATA] == before[data_path(1)]
    assert after[COLD_IDX] == before[idx_path(1)]
    assert data_path(1) not in after
    assert idx_path(1) not in after
    assert tags_path(1) in lab.disk.dump()
    assert lab.served() == lab.log.live()
    assert lab.env.counters.relocated == 1
    lab.power_cut().checked()


def test_a_crash_at_every_call_of_a_move_leaves_a_complete_copy_and_the_move_can_be_finished() -> None:
    states = 0
    for state, lab in crashes(six, moved, cold=True):
        states += 1
        assert lab.served() == lab.log.live(), state
        lab = lab.checked()
        if lab.segment(1).tier == "hot":
            moved(lab)
        lab = lab.checked()
        assert lab.segment(1).tier == "cold"
        assert data_path(1) not in lab.files()
    assert states > 50


# --- 126: failures before the mark ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["create", "pwrite", "fsync", "rename", "sync_dir", "mkdir"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.ESTALE])
def test_a_put_that_fails_leaves_hot_in_charge(kind: str, code: int) -> None:
    lab = six().restart()
    lab.faults.fail(kind, "cold*", code=code)  # type: ignore[arg-type]
    with pytest.raises(OSError):
        moved(lab)
    assert lab.segment(1).tier == "hot"
    assert lab.env.counters.relocation_failures == 1
    assert lab.served() == lab.log.live()
    lab.faults.clear()
    moved(lab.checked()).checked()


@pytest.mark.parametrize("path", [COLD_DATA, COLD_IDX])
@pytest.mark.parametrize("damage", [flip_bit(10), lambda data: data[:-1], lambda data: data + b"x"])
def test_a_copy_that_reads_back_differently_is_not_believed(path: str, damage: Any) -> None:
    lab = six().restart()

    def strike(call: Any) -> None:
        if call.kind == "sync_dir" and lab.disk.exists(path):
            lab.faults.hook = None
            lab.disk.tamper(path, damage)

    lab.faults.hook = strike
    with pytest.raises(StorageIo):
        moved(lab)
    assert lab.segment(1).tier == "hot"
    assert data_path(1) in lab.files()
    moved(lab.checked()).checked()


def test_a_mark_that_cannot_be_logged_leaves_hot_in_charge() -> None:
    lab = six()

    def refuse(_: object) -> None:
        raise StorageIo("the log is read-only")

    with pytest.raises(StorageIo):
        relocate(lab.segment(1), refuse)
    assert lab.segment(1).tier == "hot"
    lab.delete(3)
    lab.restart().checked()
    moved(lab.restart()).checked()


# --- 127, 128: deletes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nth", range(1, 16))
def test_a_delete_at_any_call_of_a_move_is_flagged_in_cold(nth: int) -> None:
    lab = six().restart()
    calls = 0

    def strike(call: Any) -> None:
        nonlocal calls
        if call.kind in ("create", "pwrite", "fsync", "datasync", "rename", "sync_dir", "unlink"):
            calls += 1
            if calls == nth:
                lab.delete(4)

    lab.faults.hook = strike
    moved(lab)
    lab.faults.hook = None
    lab.delete(4)
    flush_cold_flips(lab.segment(1))
    lab.snapshot().trim_wal()
    assert not lab.log.dead
    again = lab.power_cut()
    assert 4 not in again.served()
    again.checked()


def test_a_delete_during_the_copy_is_flagged_in_cold_before_hot_goes() -> None:
    lab = six().restart()
    at_unlink: list[tuple[bytes, bytes]] = []

    def strike(call: Any) -> None:
        if call.kind == "fsync" and call.path == COLD_IDX + ".tmp":
            lab.delete(4)
        if call.kind == "unlink" and call.path == data_path(1):
            at_unlink.append((lab.disk.contents(COLD_DATA), lab.disk.contents(data_path(1))))

    lab.faults.hook = strike
    moved(lab)
    ((cold, hot),) = at_unlink
    assert cold == hot
    assert cold.count(0xD5) == 1
    assert lab.disk.contents(COLD_IDX)[3 * 20 + 16] & 4


def test_a_delete_in_a_cold_segment_is_in_the_dead_list_until_it_is_flagged() -> None:
    lab = moved(six())
    lab.delete(2).snapshot()
    assert lab.log.dead == {2}
    assert lab.power_cut().served() == lab.log.live()
    lab = lab.power_cut()
    lab.delete(2)
    flagged = flush_cold_flips(lab.segment(1))
    assert flagged is not None
    assert flagged.slots.tolist() == [1]
    lab.snapshot()
    assert lab.log.dead == set()
    lab.power_cut().checked()


@pytest.mark.parametrize("kind", ["pwrite", "datasync"])
def test_a_cold_flip_that_fails_stays_pending(kind: str) -> None:
    lab = moved(six())
    lab.delete(2)
    lab.faults.fail(kind, "cold*")  # type: ignore[arg-type]
    with pytest.raises(OSError):
        flush_cold_flips(lab.segment(1))
    assert lab.segment(1).flips.pending() == [1]
    flush_cold_flips(lab.segment(1))
    assert not lab.segment(1).flips
    lab.snapshot().power_cut().checked()


def test_hot_files_that_cannot_be_removed_are_flagged_too_and_removed_later() -> None:
    lab = six()
    lab.faults.fail("unlink", f"{DIR}*", times=FOREVER)
    moved(lab)
    lab.faults.clear()
    assert lab.segment(1).hot_remnant
    lab.delete(3)
    flush_cold_flips(lab.segment(1))
    hot, cold = lab.disk.contents(data_path(1)), lab.disk.contents(COLD_DATA)
    assert hot == cold
    assert delete_hot(lab.segment(1))
    assert data_path(1) not in lab.files()
    lab.snapshot().checked()


def test_a_start_removes_hot_files_whose_move_was_logged() -> None:
    lab = six()
    lab.faults.fail("unlink", f"{DIR}*", times=FOREVER)
    moved(lab)
    again = lab.power_cut()
    assert again.segment(1).tier == "cold"
    assert data_path(1) not in again.files()
    again.checked()


# --- 129: resolution ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["missing data", "missing index", "cut", "both missing"])
def test_a_damaged_hot_copy_gives_way_to_a_complete_cold_one(damage: str) -> None:
    lab = six()
    lab.faults.fail("unlink", f"{DIR}*", times=FOREVER)
    moved(lab)
    lab.log.expected.moves = {}  # as if the move was never logged: hot is the authority
    _damage(lab, damage, data_path(1), idx_path(1))
    lab.monitor.cold = None  # a lone index is no copy: it may go without a mark
    again = lab.power_cut()
    assert again.served() == again.log.live()
    assert damage == "missing index" or any("cold copy" in finding.message for finding in again.findings)
    assert damage != "missing data" or idx_path(1) not in again.files()
    again.checked()


def _damage(lab: Lab, damage: str, data: str, idx: str) -> None:
    if damage in ("missing data", "both missing"):
        lab.disk.erase(data)
    if damage in ("missing index", "both missing"):
        lab.disk.erase(idx)
    if damage == "cut":
        lab.tamper(data, lambda old: old[:-40])


@pytest.mark.parametrize("damage", ["missing data", "missing index", "cut", "both missing"])
def test_an_incomplete_cold_copy_gives_way_to_the_hot_one(damage: str) -> None:
    lab = six()
    lab.faults.fail("unlink", f"{DIR}*", times=FOREVER)
    moved(lab)
    _damage(lab, damage, COLD_DATA, COLD_IDX)
    again = lab.power_cut()
    assert again.segment(1).tier == "hot"
    assert again.served() == again.log.live()
    assert any("hot one is used" in finding.message for finding in again.findings)
    moved(again)


def test_a_damaged_hot_frame_is_repaired_from_the_cold_copy() -> None:
    lab = six()
    lab.faults.fail("unlink", f"{DIR}*", times=FOREVER)
    moved(lab)
    lab.log.expected.moves = {}
    lab = lab.tamper(data_path(1), flip_bit(40)).power_cut()
    assert lab.segment(1).tier == "hot"
    assert lab.served() == lab.log.live()
    assert not lab.segment(1).damaged


def test_a_cold_copy_without_a_logged_move_leaves_hot_the_authority() -> None:
    lab = six()
    with pytest.raises(StorageIo):
        relocate(lab.segment(1), _refuse)
    again = lab.power_cut()
    assert again.segment(1).tier == "hot"
    moved(again.checked()).checked()


def _refuse(_: object) -> None:
    raise StorageIo("no")


def test_a_cold_segment_without_a_cold_store_refuses_the_start() -> None:
    lab = moved(six()).snapshot()
    lab.cold = False
    before = lab.disk.dump()
    with pytest.raises(ColdStoreMismatch):
        lab.restart(may_write=False)
    assert lab.disk.dump() == before


def test_a_damaged_segment_does_not_move() -> None:
    lab = six()
    lab = lab.tamper(data_path(1), flip_bit(40)).restart()
    before = lab.files()
    assert not relocate(lab.segment(1), lab.log_tier_mark)
    assert lab.segment(1).damaged
    assert lab.files() == before
    assert plan_moves(lab.sealed, retain_segments=0, retain_bytes=0) == []


# --- 131: the store does not answer ---------------------------------------------------------------------------------


def test_an_unreachable_store_fails_the_reads_that_need_it_and_nothing_else() -> None:
    lab = moved(six()).snapshot().power_cut()
    lab.faults.fail(("open", "stat_len", "exists", "listdir"), "cold*", times=FOREVER)
    with pytest.raises(ColdUnavailable):
        lab.read(2)
    assert lab.read(6) == lab.log.live()[6]
    lab.append(1).checkpoint()
    lab.faults.clear()
    assert lab.served() == lab.log.live()


def test_a_start_without_the_store_takes_cold_segments_from_what_was_recorded() -> None:
    lab = moved(six()).snapshot().restart()
    lab.faults.fail("*", "cold*", times=FOREVER)
    again = Lab(lab.disk, lab.log, fs=lab.faults, cold=True)
    segment = again.segment(1)
    assert (segment.tier, segment.count, segment.ready) == ("cold", 5, False)
    assert again.loaded.sealed[0].live == 5
    with pytest.raises(ColdUnavailable):
        _ = segment.flags
    with pytest.raises(ColdUnavailable):
        segment.load_index()
    lab.faults.clear()
    segment.load_index()
    assert segment.ready


def test_tags_of_a_cold_segment_need_no_cold_store() -> None:
    lab = moved(six()).snapshot().power_cut()
    lab.faults.fail("*", "cold*", times=FOREVER)
    assert lab.segment(1).tag_slots(TagMatch("Eq", "a")).tolist() == [0, 1, 2, 3, 4]


# --- promotion, retention, cache, owner -----------------------------------------------------------------------------


def test_a_cold_segment_comes_back_to_be_rewritten_and_goes_again() -> None:
    lab = moved(six())
    lab.delete(1, 2, 3)
    assert promote(lab.segment(1), lab.log_tier_mark)
    assert lab.segment(1).tier == "hot"
    lab.snapshot()
    assert lab.log.dead == set()
    assert rewrite(lab.segment(1), np.array([True, True, True, False, False]))
    moved(lab)
    lab.snapshot().power_cut().checked()


def test_a_crash_at_every_call_of_a_promotion_leaves_a_complete_copy() -> None:
    def prepare(lab: Lab) -> Lab:
        return moved(six(lab)).delete(2).snapshot()

    def act(lab: Lab) -> None:
        promote(lab.segment(1), lab.log_tier_mark)
        lab.delete(2)
        lab.snapshot()

    for state, lab in crashes(prepare, act, cold=True):
        assert lab.served() == lab.log.live(), state
        lab.checked()


@pytest.mark.parametrize(
    ("segments", "hot_bytes", "moving"),
    [(4, 0, 0), (2, 0, 1), (0, 0, 3), (1, 0, 2), (3, 1, 3), (3, 300, 2), (1, 10_000, 2)],
)
def test_the_newest_segments_stay_hot_by_count_and_bytes(segments: int, hot_bytes: int, moving: int) -> None:
    lab = new_lab(cold=True).append(16).checkpoint()
    sizes = [segment.data_len for segment in lab.sealed]
    assert len(sizes) == 3
    assert max(sizes) <= 300 < 2 * min(sizes)
    planned = plan_moves(lab.sealed, retain_segments=segments, retain_bytes=hot_bytes)
    assert planned == lab.sealed[:moving]


def test_a_drop_takes_both_tiers() -> None:
    lab = moved(six())
    segment = lab.sealed.pop()
    drop_segment(segment)
    drop_cold_copy(segment)
    assert not [path for path in lab.disk.dump() if "0000000000000001" in path]


def test_cold_copies_nobody_needs_are_listed_for_removal() -> None:
    lab = six()
    lab.disk.plant(f"{COLD_DIR}/seg-0000000000000900.data", b"old")
    assert lab.restart().loaded.cold_garbage == [900]


def test_a_cold_range_is_fetched_once_and_counted() -> None:
    lab = moved(six())
    first = lab.fetcher.fetch([SealedRead(lab.segment(1), range(5))])
    again = lab.fetcher.fetch([SealedRead(lab.segment(1), range(2, 4))])
    assert (first.cold_segments, again.cold_segments) == (1, 0)
    assert [record.seq for record in again.runs[0].records()] == [3, 4]


def test_the_cold_cache_keeps_within_its_bytes() -> None:
    lab = new_lab(cold=True).append(5, size=BLOCK_BYTES).append(1).checkpoint()
    moved(lab)
    cache = ColdCache(2 * BLOCK_BYTES)
    for offset in range(0, lab.segment(1).data_len - 10, BLOCK_BYTES // 2):
        cache.read(lab.segment(1), offset, 10)
        assert cache.bytes_held <= 2 * BLOCK_BYTES
    cache.forget(lab.segment(1))
    assert cache.bytes_held == 0


def test_the_owner_of_a_cold_store_survives_a_power_cut() -> None:
    fs = SimFs()
    assert cold_owner(fs, "cold") is None
    write_owner(fs, "cold", "a" * 32)
    assert cold_owner(fs, "cold") == "a" * 32
    fs.power_cut()
    assert cold_owner(fs.reboot(), "cold") == "a" * 32
