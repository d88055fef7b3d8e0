"""Each way in which FaultFs can fail a call, and that it counts what it sees."""

import errno
from random import Random

import pytest

from topics.storage.fs import SyncFailed, install, read_file, read_full, write_all, write_all_v
from topics.storage.osfs import OsFs, RetryingFs
from topics.testing.faultfs import FOREVER, KINDS, FaultFs, SimCrash
from topics.testing.simfs import SimFs


@pytest.fixture
def disk() -> SimFs:
    return SimFs()


@pytest.fixture
def fs(disk: SimFs) -> FaultFs:
    return FaultFs(disk)


def test_the_kth_call_of_a_kind_on_a_path_fails_once(fs: FaultFs) -> None:
    fault = fs.fail("pwrite", "*.log", code=errno.ENOSPC, at=2)
    log, other = fs.open("a.log", "create"), fs.open("a.idx", "create")
    assert log.pwrite(0, b"one") == 3
    assert other.pwrite(0, b"x") == 1
    with pytest.raises(OSError) as caught:
        log.pwrite(3, b"two")
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == "a.log"
    assert log.pwrite(3, b"two") == 3
    assert (fault.seen, fault.hits) == (3, 1)


def test_call_number_k_of_any_kind_fails(fs: FaultFs) -> None:
    fs.fail(at=3)
    file = fs.open("a", "create")
    file.pwrite(0, b"x")
    with pytest.raises(OSError):
        file.fsync()


def test_a_lasting_fault_ends_when_it_is_lifted(fs: FaultFs) -> None:
    fault = fs.fail("sync_dir", times=FOREVER)
    for _ in range(3):
        with pytest.raises(OSError):
            fs.sync_dir(".")
    fault.lift()
    fs.sync_dir(".")
    assert fault.hits == 3


def test_a_full_disk_takes_nothing_new_until_it_has_space(disk: SimFs, fs: FaultFs) -> None:
    file = fs.open("a", "create")
    write_all(file, 0, b"old")
    full = fs.fill_disk()
    refused = (
        lambda: file.pwrite(3, b"x"),
        lambda: file.allocate(9),
        lambda: fs.open("b", "create"),
        lambda: fs.mkdir("d"),
    )
    for call in refused:
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.ENOSPC
    file.fsync()
    file.truncate(2)
    fs.rename("a", "c")
    full.lift()
    for call in refused:
        call()
    assert sorted(disk.listdir(".")) == ["b", "c", "d"]


def test_any_error_can_be_raised(fs: FaultFs) -> None:
    fs.fail("pread", error=MemoryError())
    with pytest.raises(MemoryError):
        read_file(fs, _made(fs, "a", b"abc"))


def test_a_short_write_takes_the_bytes_it_says(disk: SimFs, fs: FaultFs) -> None:
    fs.short("pwrite", keep=3)
    file = fs.open("a", "create")
    assert file.pwrite(0, b"abcdef") == 3
    assert disk.contents("a") == b"abc"
    fs.short("pwrite")
    assert file.pwritev(3, [b"d", b"ef", b"g"]) == 2
    assert disk.contents("a") == b"abcde"


def test_a_write_that_returns_0_gets_nowhere(fs: FaultFs) -> None:
    fs.short("pwrite", keep=0, times=FOREVER)
    with pytest.raises(OSError) as caught:
        write_all(fs.open("a", "create"), 0, b"abc")
    assert caught.value.errno == errno.EIO


def test_a_blocked_call_waits_for_its_callback_and_goes_on(disk: SimFs, fs: FaultFs) -> None:
    seen: list[bytes] = []
    fs.block("pwrite", until=lambda: seen.append(disk.contents("a")))
    fs.open("a", "create").pwrite(0, b"x")
    assert (seen, disk.contents("a")) == ([b""], b"x")


@pytest.mark.parametrize("kind", ["datasync", "fsync"])
def test_a_lying_sync_promotes_nothing(disk: SimFs, fs: FaultFs, kind: str) -> None:
    file = fs.open("a", "create")
    fs.sync_dir(".")
    file.pwrite(0, b"x")
    fs.lie("datasync" if kind == "datasync" else "fsync")
    getattr(file, kind)()
    disk.power_cut(pattern="lose_all")
    assert disk.reboot().contents("a") == b""


def test_a_lying_sync_dir_promotes_no_name(disk: SimFs, fs: FaultFs) -> None:
    fs.open("a", "create").fsync()
    fs.lie("sync_dir")
    fs.sync_dir(".")
    disk.power_cut(pattern="lose_all")
    assert not disk.reboot().exists("a")


def test_after_a_failed_sync_a_later_one_does_not_save_the_bytes(disk: SimFs, fs: FaultFs) -> None:
    file = fs.open("a", "create")
    fs.sync_dir(".")
    file.pwrite(0, b"lost")
    fs.fail("datasync")
    with pytest.raises(OSError):
        file.datasync()
    file.pwrite(4, b"kept")
    file.datasync()
    lucky = disk.clone()
    disk.power_cut(pattern="lose_all")
    assert disk.reboot().contents("a") == b"\0\0\0\0kept"
    lucky.power_cut(pattern="keep_all")
    assert lucky.reboot().contents("a") == b"lostkept"


def test_bytes_written_anew_after_a_failed_sync_are_saved_by_the_next(disk: SimFs, fs: FaultFs) -> None:
    file = fs.open("a", "create")
    fs.sync_dir(".")
    file.pwrite(0, b"aabbccdd")
    fs.fail("datasync")
    with pytest.raises(OSError):
        file.datasync()
    file.truncate(6)
    file.pwrite(2, b"BB")
    file.datasync()
    for pattern, expected in (("lose_all", b"\0\0BB\0\0"), ("keep_all", b"aaBBcc")):
        after = disk.clone()
        after.power_cut(pattern=pattern)
        assert after.reboot().contents("a") == expected


def test_a_crash_ends_every_later_call_too(disk: SimFs, fs: FaultFs) -> None:
    disk.plant("CURRENT", b"old")
    fs.crash("rename")
    with pytest.raises(SimCrash):
        install(fs, "CURRENT", b"new")
    with pytest.raises(SimCrash):
        fs.listdir(".")
    assert disk.reboot().contents("CURRENT") == b"old"


def test_calls_are_traced_and_shown_before_they_happen(disk: SimFs) -> None:
    seen: list[tuple[str, bool]] = []
    fs = FaultFs(disk, hook=lambda call: seen.append((call.kind, disk.exists("a"))))
    install(fs, "a", b"x")
    assert [(call.kind, call.path) for call in fs.trace] == [
        ("create", "a.tmp"),
        ("pwrite", "a.tmp"),
        ("fsync", "a.tmp"),
        ("close", "a.tmp"),
        ("rename", "a"),
        ("sync_dir", "."),
    ]
    assert seen[-2:] == [("rename", False), ("sync_dir", True)]
    assert fs.calls == 6


# --- what write_all and RetryingFs make of passing failures ---


@pytest.mark.parametrize("vectored", [False, True])
def test_short_writes_are_continued(disk: SimFs, fs: FaultFs, vectored: bool) -> None:
    data = Random(3).randbytes(5000)
    fs.short("pwrite", times=4)
    file = fs.open("a", "create")
    if vectored:
        write_all_v(file, 10, [data[i : i + 7] for i in range(0, len(data), 7)])
    else:
        write_all(file, 10, data)
    assert disk.contents("a") == bytes(10) + data


def test_vectored_writes_go_in_runs_the_kernel_takes(tmp_path: object) -> None:
    fs = OsFs(str(tmp_path))
    write_all_v(fs.open("a", "create"), 0, [b"x"] * 3000 + [b""] * 600 + [b"y"])
    assert read_file(fs, "a") == b"x" * 3000 + b"y"


def test_short_reads_are_continued(fs: FaultFs) -> None:
    path = _made(fs, "a", b"0123456789")
    fs.short("pread", times=3)
    assert read_full(fs.open(path), 2, 100) == b"23456789"
    fs.short("pread", times=2)
    assert read_file(fs, path) == b"0123456789"


def test_eintr_on_every_call_has_no_effect(disk: SimFs, fs: FaultFs) -> None:
    pauses: list[float] = []
    steady = RetryingFs(fs, sleep=pauses.append)
    faults = [fs.fail(kind, code=errno.EINTR, times=5) for kind in KINDS if kind != "close"]
    steady.mkdir("d")
    steady.lock("d/.lock").replace_text("pid=1\n")
    install(steady, "d/a", b"abc")
    file = steady.open("d/a", "rw")
    file.truncate(2)
    file.allocate(4)
    file.datasync()
    assert (file.size(), file.pread(0, 9), bytes(file.mmap())) == (4, b"ab\0\0", b"ab\0\0")
    assert (steady.listdir("d"), steady.stat_len("d/a")) == ([".lock", "a"], 4)
    assert (steady.exists("d/a"), steady.is_dir("d")) == (True, True)
    assert steady.file_id("d/a") == disk.file_id("d/a")
    steady.unlink("d/a")
    steady.unlink("d/.lock")
    steady.rmdir("d")
    assert disk.listdir(".") == []
    assert pauses == []
    assert {fault.hits for fault in faults} == {5}


def test_eagain_is_retried_ten_times_within_100_ms(fs: FaultFs) -> None:
    pauses: list[float] = []
    file = RetryingFs(fs, sleep=pauses.append).open("a", "create")
    fs.fail("pwrite", code=errno.EAGAIN, times=10)
    write_all(file, 0, b"abc")
    assert (len(pauses), file.size()) == (10, 3)
    assert sum(pauses) <= 0.1 + 1e-9


def test_eagain_for_ever_is_a_failed_call(fs: FaultFs) -> None:
    pauses: list[float] = []
    steady = RetryingFs(fs, sleep=pauses.append)
    file = steady.open("a", "create")
    for kind in ("pwrite", "fsync"):
        fault = fs.fail("pwrite" if kind == "pwrite" else "fsync", code=errno.EAGAIN, times=FOREVER)
        pauses.clear()
        with pytest.raises(BlockingIOError if kind == "pwrite" else SyncFailed):
            write_all(file, 0, b"abc") if kind == "pwrite" else file.fsync()
        assert (fault.hits, len(pauses)) == (11, 10)


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL])
def test_without_allocation_a_file_is_extended(disk: SimFs, fs: FaultFs, code: int) -> None:
    fs.fail("allocate", code=code, times=FOREVER)
    file = RetryingFs(fs).open("a", "create")
    write_all(file, 0, b"abc")
    file.allocate(100)
    file.allocate(50)
    assert disk.contents("a") == b"abc" + bytes(97)


def test_a_full_disk_is_not_mistaken_for_missing_allocation(fs: FaultFs) -> None:
    fs.fail("allocate", code=errno.ENOSPC)
    with pytest.raises(OSError) as caught:
        RetryingFs(fs).open("a", "create").allocate(100)
    assert caught.value.errno == errno.ENOSPC


def _made(fs: FaultFs, path: str, data: bytes) -> str:
    write_all(fs.open(path, "create"), 0, data)
    return path
