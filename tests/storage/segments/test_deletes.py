"""Deletes on disk: flips, empty slots, drops (fault matrix I, as far as segment files go)."""

from __future__ import annotations

import pytest
from tests.storage.segments.lab import DIR, HOT, Lab, crashes, data_path, idx_path, new_lab, tags_path

from topics.storage.fs import read_file
from topics.storage.segments.loading.loaded import Move
from topics.storage.segments.replace import drop_segment, list_topic_dirs, remove_retired_dir, retire_topic_dir
from topics.testing import FOREVER

SEQS = {"sealed": 2, "active": 7}


def seven() -> Lab:
    """Sealed 1..5, active 6 and 7."""
    return new_lab().append(7, tag="a").checkpoint().snapshot()


def flag_byte(lab: Lab, seq: int) -> int:
    first = 1 if seq <= 5 else 6
    data, idx = read_file(lab.fs, data_path(first)), read_file(lab.fs, idx_path(first))
    at = (seq - first) * 20
    offset, length = (int.from_bytes(idx[at + i : at + i + 4], "little") for i in (0, 4))
    return data[offset + length - 1]


def entry_flags(lab: Lab, seq: int) -> int:
    first = 1 if seq <= 5 else 6
    return read_file(lab.fs, idx_path(first))[(seq - first) * 20 + 16]


# --- 111 to 114: flips ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", SEQS)
def test_a_delete_writes_one_byte_at_once_and_the_entry_bit_after_the_sync(where: str) -> None:
    lab, seq = seven(), SEQS[where]
    before = lab.files()
    lab.delete(seq)
    assert flag_byte(lab, seq) == 0xD5
    assert entry_flags(lab, seq) & 4 == 0
    (flagged,) = lab.flips.sync()
    assert flagged.first_seq + int(flagged.slots[0]) == seq
    assert entry_flags(lab, seq) & 4
    after = lab.files()
    assert sum(sum(a != b for a, b in zip(before[p], after[p], strict=True)) for p in before) == 2


@pytest.mark.parametrize("where", SEQS)
def test_a_crash_at_every_call_of_a_delete_leaves_it_deleted(where: str) -> None:
    seq = SEQS[where]

    def act(lab: Lab) -> None:
        lab.delete(seq)
        lab.flips.sync()
        lab.snapshot()

    for state, lab in crashes(lambda lab: lab.append(7).checkpoint().snapshot(), act):
        if seq in lab.log.deleted:
            assert seq not in lab.served(), state
        lab.checked()


@pytest.mark.parametrize("where", SEQS)
@pytest.mark.parametrize("fate", ["keep_all", "lose_all"])
def test_an_unsynced_flag_byte_may_survive_or_not(where: str, fate: str) -> None:
    lab = seven().delete(SEQS[where])
    assert SEQS[where] not in lab.power_cut(fate).checked().served()


@pytest.mark.parametrize("where", SEQS)
def test_the_flag_byte_alone_keeps_a_record_deleted_when_the_log_is_trimmed(where: str) -> None:
    lab = seven().delete(SEQS[where]).snapshot().trim_wal()
    assert not lab.log.unabsorbed
    assert not lab.log.dead
    again = lab.power_cut().checked()
    assert SEQS[where] not in again.served()


@pytest.mark.parametrize("where", SEQS)
@pytest.mark.parametrize("killed_before", ["*.data", "*.idx", "nothing"])
def test_a_killed_process_that_flipped_without_a_sync_is_made_up_for(where: str, killed_before: str) -> None:
    lab, seq = seven().delete(SEQS[where]), SEQS[where]
    lab.faults.fail("datasync", killed_before, error=KeyboardInterrupt())
    try:
        lab.flips.sync()
    except KeyboardInterrupt:
        pass
    again = lab.restart()  # flags are in the page cache; the replayed delete finds them already set
    again.snapshot().trim_wal()
    assert entry_flags(again, seq) & 4
    after = again.power_cut()
    assert after.is_dead(seq)
    assert seq not in after.checked().served()


@pytest.mark.parametrize("where", SEQS)
@pytest.mark.parametrize("kind", ["pwrite", "datasync"])
@pytest.mark.parametrize("part", ["data", "idx"])
def test_a_flip_that_fails_fails_no_delete_and_is_tried_again(where: str, kind: str, part: str) -> None:
    lab, seq = seven(), SEQS[where]
    lab.faults.fail(kind, f"*.{part}")  # type: ignore[arg-type]
    lab.delete(seq)
    lab.flips.sync()
    lab.snapshot()
    lab.faults.clear()
    again = lab.power_cut("lose_all")
    assert seq not in again.served()
    again.snapshot()
    assert again.log.dead == set()
    assert seq not in again.trim_wal().power_cut().checked().served()


def test_a_flip_that_cannot_be_written_is_in_the_dead_list() -> None:
    lab = seven()
    lab.faults.fail("pwrite", "*.data", times=FOREVER)
    lab.delete(2, 7).snapshot()
    assert lab.log.dead == {2, 7}
    assert not lab.log.unabsorbed
    assert lab.env.counters.flip_failures
    again = lab.power_cut()
    assert again.served() == again.log.live()
    again.delete(2, 7).snapshot()
    assert again.log.dead == set()


def test_a_replaced_active_segment_keeps_its_pending_flips() -> None:
    lab = seven().delete(6)
    lab.append(4).checkpoint()  # seals 6..10
    lab.snapshot().trim_wal()
    assert lab.log.dead == set()
    assert 6 not in lab.power_cut().checked().served()


def test_many_flips_of_one_segment_are_synced_together() -> None:
    lab = new_lab().append(5).checkpoint()
    lab.delete(1, 2, 3)
    syncs: list[str] = []
    lab.faults.hook = lambda call: syncs.append(call.path) if call.kind == "datasync" else None
    lab.flips.sync()
    assert syncs == [data_path(1), idx_path(1)]
    assert len(lab.flips) == 0


# --- 118: deletes of what is only in the log ------------------------------------------------------------------------


def test_a_record_deleted_before_its_checkpoint_becomes_an_empty_slot() -> None:
    lab = new_lab().append(3, size=40).delete(2).checkpoint()
    assert lab.log.records[2].blob not in read_file(lab.fs, data_path(1))
    entry = read_file(lab.fs, idx_path(1))[20:40]
    assert entry == bytes(8) + lab.log.records[2].ts.to_bytes(8, "little") + b"\x04\0\0\0"
    lab.snapshot().trim_wal().checked()


def test_a_deleted_record_that_a_router_needs_is_written_flagged() -> None:
    lab = new_lab().append(3).delete(2).checkpoint(kept=[2])
    assert flag_byte_first(lab, 2) == 0xD5
    assert entry_of(lab, 2)[16] & 4
    lab.snapshot().trim_wal().checked()


def entry_of(lab: Lab, seq: int) -> bytes:
    return read_file(lab.fs, idx_path(1))[(seq - 1) * 20 : seq * 20]


def flag_byte_first(lab: Lab, seq: int) -> int:
    entry = entry_of(lab, seq)
    end = int.from_bytes(entry[:4], "little") + int.from_bytes(entry[4:8], "little")
    return read_file(lab.fs, data_path(1))[end - 1]


def test_a_segment_of_empty_slots_only_is_a_segment() -> None:
    lab = new_lab().append(5).delete(1, 2, 3, 4, 5).append(1).checkpoint().snapshot().trim_wal()
    assert lab.segment(1).data_len == 0
    assert lab.segment(1).totals() == (0, 0)
    lab.power_cut().checked()


@pytest.mark.parametrize("deleted", [(1,), (2,), (3,), (1, 2, 3), (4, 5), (1, 2, 3, 4, 5, 6)])
def test_a_crash_at_every_call_of_a_checkpoint_with_deletes_keeps_them_deleted(deleted: tuple[int, ...]) -> None:
    def prepare(lab: Lab) -> Lab:
        return lab.append(1).checkpoint().append(6).delete(*deleted)

    for _, lab in crashes(prepare, lambda lab: lab.checkpoint(), patterns=("lose_all", "reorder", "random")):
        lab.checked().checkpoint().checked()


# --- 119, 120: drops ------------------------------------------------------------------------------------------------


def _dropped_by_delete(lab: Lab) -> None:
    """Every record of 1..5 is deleted: `gone` is logged, then the files go."""
    lab.log.deleted |= set(range(1, 6))
    lab.log.unabsorbed |= set(range(1, 6))
    lab.log.expected.moves = {1: Move(5, "gone")}
    segment = lab.sealed.pop(0)
    lab.dead |= set(range(1, 6))
    drop_segment(segment)


def _dropped_by_floor(lab: Lab) -> None:
    lab.log.expected.earliest_seq = 6
    drop_segment(lab.sealed.pop(0))


@pytest.mark.parametrize("act", [_dropped_by_delete, _dropped_by_floor])
def test_a_crash_at_every_call_of_a_drop_serves_all_or_nothing_and_is_finished(act: object) -> None:
    prepare = lambda lab: lab.append(7).checkpoint().snapshot().trim_wal()  # noqa: E731
    for state, lab in crashes(prepare, act):  # type: ignore[arg-type]
        assert lab.served() == lab.log.live(), state
        if lab.log.expected.moves:
            assert lab.names() == ["seg-0000000000000006.data", "seg-0000000000000006.idx"], state
        lab.checked()


@pytest.mark.parametrize("part", ["data", "idx", "tags"])
def test_an_unlink_that_fails_is_retried(part: str) -> None:
    lab = seven()
    lab.log.expected.earliest_seq = 6
    lab.faults.fail("unlink", f"*.{part}")
    with pytest.raises(OSError):
        drop_segment(lab.segment(1))
    drop_segment(lab.segment(1))
    drop_segment(lab.sealed.pop())
    assert lab.names() == ["seg-0000000000000006.data", "seg-0000000000000006.idx"]
    lab.checked()


def test_what_is_left_of_a_gone_segment_is_removed_at_start() -> None:
    for gone in ([], [data_path(1)], [data_path(1), idx_path(1)]):
        lab = seven()
        lab.log.expected.moves = {1: Move(5, "gone")}
        lab.log.deleted |= set(range(1, 6))
        lab.log.unabsorbed |= set(range(1, 6))
        for path in gone:
            lab.disk.erase(path)
        again = lab.restart()
        assert again.names() == ["seg-0000000000000006.data", "seg-0000000000000006.idx"]
        again.checked()


def test_a_drop_removes_the_data_first() -> None:
    lab = seven()
    gone: list[str] = []
    lab.faults.hook = lambda call: gone.append(call.path) if call.kind == "unlink" else None
    drop_segment(lab.sealed.pop())
    assert gone == [data_path(1), idx_path(1), tags_path(1)]


def test_flips_for_a_dropped_segment_do_nothing() -> None:
    lab = seven()
    segment = lab.sealed.pop()
    drop_segment(segment)
    lab.flips.flip(segment, [1])
    lab.flips.sync()
    assert data_path(1) not in lab.files()


# --- whole topics ---------------------------------------------------------------------------------------------------


def test_a_deleted_topic_is_renamed_first_and_removed_later() -> None:
    lab = seven()
    name = retire_topic_dir(lab.env, 10)
    assert name == "0000000A.deleted"
    dirs = list_topic_dirs(lab.fs, HOT)
    assert (dirs.ids, dirs.deleted) == ([], [name])
    remove_retired_dir(lab.env, name)
    remove_retired_dir(lab.env, name)
    assert lab.fs.listdir(HOT) == []
    assert retire_topic_dir(lab.env, 10) is None


def test_foreign_names_among_the_topic_directories_are_told_apart() -> None:
    lab = seven()
    for name in ("000000a", "A", "0000000A.old", "notes"):
        lab.fs.mkdir(f"{HOT}/{name}")
    dirs = list_topic_dirs(lab.fs, HOT)
    assert dirs.ids == [10]
    assert dirs.foreign == ["0000000A.old", "000000a", "A", "notes"]


def test_a_crash_at_every_call_of_a_topic_removal_leaves_nothing_half_in_use() -> None:
    def act(lab: Lab) -> None:
        name = retire_topic_dir(lab.env, 10)
        assert name is not None
        remove_retired_dir(lab.env, name)

    for state, lab in crashes(lambda lab: lab.append(7).checkpoint().snapshot(), act):
        dirs = list_topic_dirs(lab.fs, HOT)
        if dirs.ids:
            whole = {"seg-0000000000000001.data", "seg-0000000000000001.idx", "seg-0000000000000006.data"}
            assert whole <= set(lab.names(DIR)), state
        for name in dirs.deleted:
            remove_retired_dir(lab.env, name)


def test_a_full_disk_does_not_hinder_a_drop() -> None:
    lab = seven()
    lab.faults.fill_disk()
    drop_segment(lab.sealed.pop())
    assert tags_path(1) not in lab.disk.dump()
