"""What survives a kill, and what each kind of power cut leaves."""

import errno
from collections import Counter
from random import Random

import pytest

from topics.errors import DataDirLocked
from topics.testing import POWER_PATTERNS
from topics.testing.powercut import NamesLost, flipped_at, only, sector_zeroed_at, torn_at
from topics.testing.simdisk import PowerCutFate
from topics.testing.simfs import SimFile, SimFs


def synced(fs: SimFs, path: str, data: bytes = b"") -> SimFile:
    file = fs.open(path, "create")
    file.pwrite(0, data)
    file.fsync()
    fs.sync_dir(path.rpartition("/")[0] or ".")
    return file


def cut(fs: SimFs, pattern: str | PowerCutFate, seed: int = 1) -> SimFs:
    """A copy of the disk after a power cut; `fs` goes on."""
    after = fs.clone()
    after.power_cut(Random(seed), pattern)
    return after.reboot()


# --- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [SimFile.datasync, SimFile.fsync])
def test_synced_bytes_survive_every_pattern(sync: object) -> None:
    fs = SimFs()
    file = synced(fs, "a")
    file.allocate(4096)
    file.pwrite(0, b"x" * 1000)
    assert callable(sync)
    sync(file)
    file.pwrite(1000, b"y" * 1000)
    for pattern in POWER_PATTERNS:
        for seed in range(20):
            after = cut(fs, pattern, seed).contents("a")
            assert after[:1000] == b"x" * 1000, (pattern, seed)
            assert len(after) == 4096


def test_unsynced_bytes_are_lost_or_kept_whole() -> None:
    fs = SimFs()
    synced(fs, "a", b"old").pwrite(3, b"new")
    assert cut(fs, "lose_all").contents("a") == b"old"
    assert cut(fs, "keep_all").contents("a") == b"oldnew"


def test_a_torn_write_ends_at_any_byte() -> None:
    fs = SimFs()
    synced(fs, "a", b"old").pwrite(3, b"0123456789")
    found = {cut(fs, "keep_prefix_torn", seed).contents("a") for seed in range(200)}
    assert found == {b"old" + b"0123456789"[:n] for n in range(11)}
    for n in range(11):
        assert cut(fs, torn_at(n)).contents("a") == b"old" + b"0123456789"[:n]


def test_reordered_writes_survive_in_every_subset() -> None:
    fs = SimFs()
    file = synced(fs, "a", b"...")
    for i in range(3):
        file.pwrite(i, b"abc"[i : i + 1])
    found = {cut(fs, "reorder", seed).contents("a") for seed in range(200)}
    assert found == {
        bytes(b"abc"[i] if kept >> i & 1 else ord(".") for i in range(3)) for kept in range(8)
    }  # fmt: skip
    assert cut(fs, only(1)).contents("a") == b".b."


def test_a_zeroed_sector_takes_only_pending_bytes() -> None:
    fs = SimFs()
    synced(fs, "a", b"s" * 700).pwrite(700, b"p" * 1000)
    whole = b"s" * 700 + b"p" * 1000
    found = {cut(fs, "zero_sector", seed).contents("a") for seed in range(100)}
    expected = {whole[:lo] + bytes(hi - lo) + whole[hi:] for lo, hi in ((700, 1024), (1024, 1536), (1536, 1700))}
    assert found == expected
    assert {cut(fs, sector_zeroed_at(n)).contents("a") for n in range(1000)} == expected


def test_one_bit_of_the_pending_bytes_flips() -> None:
    fs = SimFs()
    synced(fs, "a", b"safe").pwrite(4, bytes(8))
    for seed in range(50):
        after = cut(fs, "flip", seed).contents("a")
        assert after[:4] == b"safe"
        assert int.from_bytes(after[4:]).bit_count() == 1
    assert cut(fs, flipped_at(7, mask=0x80)).contents("a") == b"safe" + bytes(7) + b"\x80"


def test_a_size_survives_without_its_data() -> None:
    fs = SimFs()
    synced(fs, "a", b"old").pwrite(3, b"new")
    assert cut(fs, "size_without_data").contents("a") == b"old\0\0\0"


def test_a_truncation_is_pending_until_it_is_synced() -> None:
    fs = SimFs()
    file = synced(fs, "a", b"old bytes")
    file.truncate(3)
    assert cut(fs, "lose_all").contents("a") == b"old bytes"
    assert cut(fs, "keep_all").contents("a") == b"old"
    file.fsync()
    assert cut(fs, "lose_all").contents("a") == b"old"
    fs.open("a", "create")
    assert cut(fs, "lose_all").contents("a") == b"old"
    assert cut(fs, "keep_all").contents("a") == b""


def test_an_aimed_fate_leaves_other_files_whole() -> None:
    fs = SimFs()
    for name in ("a.log", "b.log"):
        synced(fs, name).pwrite(0, b"12345")
    after = cut(fs, torn_at(2, "a*"))
    assert (after.contents("a.log"), after.contents("b.log")) == (b"12", b"12345")


def test_files_meet_different_fates_in_a_random_cut() -> None:
    fs = SimFs()
    for name in "ab":
        synced(fs, name, b"old").pwrite(3, b"new")
    found = Counter((cut(fs, "random", s).contents("a"), cut(fs, "random", s).contents("b")) for s in range(100))
    assert (b"old", b"oldnew") in found
    assert (b"oldnew", b"old") in found
    assert len(found) > 10


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_synced_file_without_a_synced_name_is_gone() -> None:
    fs = SimFs()
    fs.open("a", "create").fsync()
    assert not cut(fs, "lose_all").exists("a")
    fs.sync_dir(".")
    assert cut(fs, "lose_all").exists("a")


def test_a_synced_name_without_synced_bytes_is_empty() -> None:
    fs = SimFs()
    fs.open("a", "create").pwrite(0, b"x")
    fs.sync_dir(".")
    assert cut(fs, "lose_all").contents("a") == b""


def test_a_directory_needs_its_own_parent_synced() -> None:
    fs = SimFs()
    fs.mkdir("d")
    synced(fs, "d/a", b"x")
    assert not cut(fs, "lose_all").exists("d")
    fs.sync_dir(".")
    assert cut(fs, "lose_all").contents("d/a") == b"x"


def test_an_unsynced_unlink_may_come_back_with_its_bytes() -> None:
    fs = SimFs()
    synced(fs, "a", b"x")
    fs.unlink("a")
    assert cut(fs, "lose_all").contents("a") == b"x"
    assert not cut(fs, "keep_all").exists("a")
    fs.sync_dir(".")
    assert not cut(fs, "lose_all").exists("a")


def test_a_rename_is_lost_or_whole_never_half() -> None:
    fs = SimFs()
    synced(fs, "a", b"old")
    synced(fs, "a.tmp", b"new")
    fs.rename("a.tmp", "a")
    found = {tuple(cut(fs, "reorder", seed).dump().items()) for seed in range(50)}
    assert found == {(("a", b"new"),), (("a", b"old"), ("a.tmp", b"new"))}


def test_two_renames_survive_in_either_order() -> None:
    fs = SimFs()
    for name in ("x.data", "x.idx"):
        synced(fs, name, b"old")
        synced(fs, name + ".tmp", b"new")
    for name in ("x.data", "x.idx"):
        fs.rename(name + ".tmp", name)
    found = {
        (after.contents("x.data"), after.contents("x.idx"))
        for after in (cut(fs, "reorder", seed) for seed in range(50))
    }  # fmt: skip
    assert found == {(a, b) for a in (b"old", b"new") for b in (b"old", b"new")}


def test_a_rename_survives_without_the_create_before_it() -> None:
    fs = SimFs()
    fs.open("a.tmp", "create").fsync()
    fs.rename("a.tmp", "a")
    found = {tuple(cut(fs, "reorder", seed).listdir(".")) for seed in range(50)}
    assert found == {(), ("a",), ("a.tmp",)}


def test_a_chain_of_renames_never_leaves_a_file_twice() -> None:
    fs = SimFs()
    synced(fs, "a", b"x")
    for src, dst in (("a", "b"), ("b", "c"), ("c", "d")):
        fs.rename(src, dst)
    found = {tuple(cut(fs, "reorder", seed).dump()) for seed in range(100)}
    assert found == {("a",), ("b",), ("c",), ("d",)}


def test_names_can_be_lost_by_pattern() -> None:
    fs = SimFs()
    synced(fs, "prealloc.tmp", b"open")
    fs.open("other", "create")
    fs.rename("prealloc.tmp", "wal-2.log")
    assert cut(fs, NamesLost("wal-*")).listdir(".") == ["other", "prealloc.tmp"]


def test_a_rename_across_directories_is_durable_with_either() -> None:
    for directory in ("d", "e"):
        fs = SimFs()
        for name in ("d", "e"):
            fs.mkdir(name)
        fs.sync_dir(".")
        synced(fs, "d/a", b"x")
        fs.rename("d/a", "e/b")
        assert list(cut(fs, "lose_all").dump()) == ["d/a"]
        fs.sync_dir(directory)
        assert list(cut(fs, "lose_all").dump()) == ["e/b"]


def test_a_file_that_is_durably_gone_does_not_come_back_by_an_older_name() -> None:
    fs = SimFs()
    for name in ("d", "e"):
        fs.mkdir(name)
    fs.sync_dir(".")
    fs.open("d/a", "create").close()
    fs.rename("d/a", "e/b")
    fs.unlink("e/b")
    fs.sync_dir("e")
    for pattern in POWER_PATTERNS:
        for seed in range(10):
            assert cut(fs, pattern, seed).dump() == {}


def test_a_file_replaced_durably_does_not_come_back_by_an_older_name() -> None:
    fs = SimFs()
    for name in ("d", "e"):
        fs.mkdir(name)
    fs.sync_dir(".")
    synced(fs, "d/new", b"new")
    fs.open("d/a", "create").close()
    fs.rename("d/a", "e/b")
    fs.rename("d/new", "e/b")
    fs.sync_dir("e")
    for pattern in POWER_PATTERNS:
        for seed in range(10):
            assert cut(fs, pattern, seed).dump() == {"e/b": b"new"}


def test_a_renamed_directory_takes_its_files_along() -> None:
    fs = SimFs()
    fs.mkdir("d")
    fs.sync_dir(".")
    synced(fs, "d/a", b"x")
    fs.rename("d", "d.deleted")
    found = {tuple(cut(fs, "reorder", seed).dump()) for seed in range(20)}
    assert found == {("d/a",), ("d.deleted/a",)}


def test_removed_trees_leave_nothing_behind() -> None:
    fs = SimFs()
    before = len(fs.disk.nodes)
    for _ in range(3):
        fs.mkdir("d")
        fs.sync_dir(".")
        synced(fs, "d/a", b"x").close()
        fs.unlink("d/a")
        fs.rmdir("d")
        fs.sync_dir(".")
    assert (len(fs.disk.nodes), fs.pending_names()) == (before, [])


# --- processes --------------------------------------------------------------------------------------------------------


def test_a_kill_keeps_what_is_pending_and_frees_the_lock() -> None:
    fs = SimFs()
    fs.lock(".lock").replace_text("pid=1\n")
    file = fs.open("a", "create")
    file.pwrite(0, b"x")
    with pytest.raises(DataDirLocked):
        fs.lock(".lock")
    fs.kill()
    fs = fs.reboot()
    assert fs.contents("a") == b"x"
    assert [change.data for change in fs.pending("a")] == [b"x"]
    assert fs.lock(".lock").read_text() == "pid=1\n"


def test_a_closed_lock_can_be_taken_again() -> None:
    fs = SimFs()
    fs.lock(".lock").close()
    fs.lock(".lock")


def test_a_dead_process_can_touch_nothing() -> None:
    fs = SimFs()
    file = synced(fs, "a", b"x")
    fs.power_cut()
    after = fs.reboot()
    for call in (lambda: file.pwrite(0, b"y"), file.fsync, file.size, lambda: fs.open("a"), lambda: fs.unlink("a")):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EBADF
    file.close()
    assert after.contents("a") == b"x"


def test_an_open_file_outlives_its_name_but_not_its_process() -> None:
    fs = SimFs()
    file = synced(fs, "a", b"x")
    fs.unlink("a")
    fs.sync_dir(".")
    file.pwrite(1, b"y")
    file.fsync()
    assert file.pread(0, 9) == b"xy"
    assert fs.reboot().dump() == {}


# --- clones and mappings ----------------------------------------------------------------------------------------------


def test_a_clone_and_its_origin_do_not_see_each_other() -> None:
    fs = SimFs()
    file = synced(fs, "a", b"one")
    twin = fs.clone()
    file.pwrite(0, b"two")
    other = twin.open("a", "rw")
    other.pwrite(3, b"!")
    twin.unlink("a")
    fs.open("b", "create")
    assert fs.dump() == {"a": b"two", "b": b""}
    assert (twin.dump(), other.pread(0, 9)) == ({}, b"one!")


def test_a_mapping_sees_later_writes_and_never_those_of_a_clone() -> None:
    fs = SimFs()
    file = synced(fs, "a", b"one")
    view = file.mmap()
    twin = fs.clone()
    twin.open("a", "rw").pwrite(0, b"CLO")
    file.pwrite(0, b"two")
    assert (bytes(view), twin.contents("a")) == (b"two", b"CLO")
    file.pwrite(3, b"three" * 100)
    file.pwrite(1, b"W")
    longer = file.mmap()
    file.pwrite(2, b"O")
    assert (bytes(view), bytes(longer[:4])) == (b"tWO", b"tWOt")
    assert view.readonly
    cut_off = fs.clone()
    cut_off.power_cut(pattern="lose_all")
    assert bytes(view) == b"tWO"
    assert cut_off.reboot().contents("a") == b"one"


def test_the_same_seed_gives_the_same_disk() -> None:
    fs = SimFs()
    rng = Random(5)
    for i in range(6):
        file = fs.open(f"f{i}", "create")
        if i % 2:
            fs.sync_dir(".")
        for _ in range(5):
            file.pwrite(rng.randrange(3000), rng.randbytes(rng.randrange(900)))
            if rng.random() < 0.2:
                file.fsync()
    for pattern in POWER_PATTERNS:
        assert cut(fs, pattern, 9).dump() == cut(fs, pattern, 9).dump()
    assert len({str(cut(fs, "random", seed).dump()) for seed in range(10)}) > 5


def test_tampering_changes_the_platter() -> None:
    fs = SimFs()
    synced(fs, "a", b"abc")
    fs.tamper("a", lambda data: data[:1] + b"X")
    fs.plant("d/e/foreign", b"?")
    fs.power_cut()
    fs = fs.reboot()
    assert fs.dump() == {"a": b"aX", "d/e/foreign": b"?"}
    fs.erase("a")
    assert list(cut(fs, "lose_all").dump()) == ["d/e/foreign"]


def test_a_large_preallocation_costs_only_what_is_written() -> None:
    fs = SimFs()
    file = fs.open("wal", "create")
    file.allocate(64 << 20)
    file.pwrite(0, b"x" * 100)
    file.fsync()
    node = fs.disk.file(min(fs.disk.paths()))
    assert (len(node.live.buf), len(node.durable.buf), file.size()) == (100, 100, 64 << 20)
    assert file.pread((64 << 20) - 5, 100) == bytes(5)
