"""The real file system: modes, locks, and the calls that differ between machines."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from topics.errors import DataDirLocked
from topics.storage import osfs
from topics.storage.fs import Mode, install, make_dirs, parent, read_file, remove_tree, write_all
from topics.storage.osfs import OsFs, RetryingFs
from topics.testing.simfs import SimFs


@pytest.fixture
def fs(tmp_path: Path) -> OsFs:
    return OsFs(str(tmp_path))


@pytest.fixture(params=[0o000, 0o777, 0o022], ids=["open", "hostile", "usual"])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    old = os.umask(request.param)
    yield
    os.umask(old)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_modes_do_not_depend_on_the_umask(fs: OsFs, tmp_path: Path) -> None:
    make_dirs(fs, "data/wal")
    install(fs, "data/wal/CURRENT", b"x")
    for mode in ("create", "new", "ensure"):
        fs.open(f"data/{mode}", mode).close()
    fs.lock("data/.topics.lock").close()
    for name in ("data", "data/wal"):
        assert mode_of(tmp_path / name) == 0o700
    for name in ("data/wal/CURRENT", "data/create", "data/new", "data/ensure", "data/.topics.lock"):
        assert mode_of(tmp_path / name) == 0o600


def test_every_error_of_a_file_names_it() -> None:
    file = OsFs().open("/dev/full", "rw")
    with pytest.raises(OSError, match="/dev/full") as full:
        file.pwrite(0, b"x")
    assert full.value.errno == errno.ENOSPC
    file.close()
    for call in (
        lambda: file.pread(0, 1),
        lambda: file.pwritev(0, [b"x"]),
        lambda: file.truncate(0),
        lambda: file.allocate(1),
        file.datasync,
        file.fsync,
    ):
        with pytest.raises(OSError, match="/dev/full"):
            call()


@pytest.mark.parametrize("mode", ["create", "ensure", "rw"])
def test_the_mode_of_an_existing_file_is_left_alone(fs: OsFs, tmp_path: Path, mode: Mode) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "a").chmod(0o640)
    fs.open("a", mode).close()
    assert mode_of(tmp_path / "a") == 0o640


def test_a_refused_lock_leaves_the_file_untouched(fs: OsFs, tmp_path: Path) -> None:
    held = fs.lock(".topics.lock")
    before = (tmp_path / ".topics.lock").stat()
    with pytest.raises(DataDirLocked):
        fs.lock(".topics.lock")
    after = (tmp_path / ".topics.lock").stat()
    assert (before.st_ctime_ns, before.st_mtime_ns) == (after.st_ctime_ns, after.st_mtime_ns)
    held.close()


def test_without_a_root_paths_are_as_they_are(tmp_path: Path) -> None:
    fs = OsFs()
    install(fs, f"{tmp_path}/a", b"x")
    assert (tmp_path / "a").read_bytes() == b"x"
    assert fs.listdir(str(tmp_path)) == ["a"]


def test_the_lock_is_held_against_a_second_process(fs: OsFs, tmp_path: Path) -> None:
    code = (
        "import sys; from topics.storage.osfs import OsFs; from topics.errors import DataDirLocked\n"
        "try: OsFs(sys.argv[1]).lock('.topics.lock')\n"
        "except DataDirLocked: sys.exit(7)"
    )
    lock = fs.lock(".topics.lock")
    lock.replace_text("pid=1\n")
    source = str(Path(osfs.__file__).parents[2])

    def other() -> int:
        env = {**os.environ, "PYTHONPATH": source}
        return subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60, check=False, env=env).returncode

    assert other() == 7
    assert (tmp_path / ".topics.lock").read_text() == "pid=1\n"
    lock.close()
    assert other() == 0


def test_the_lock_is_held_against_a_second_open_and_keeps_its_text(fs: OsFs) -> None:
    first = fs.lock(".topics.lock")
    first.replace_text("a long old text\n")
    with pytest.raises(DataDirLocked):
        fs.lock(".topics.lock")
    first.replace_text("new\n")
    first.close()
    second = fs.lock(".topics.lock")
    assert second.read_text() == "new\n"
    second.close()


def test_a_killed_holder_is_no_obstacle(fs: OsFs, tmp_path: Path) -> None:
    code = (
        "import sys; from topics.storage.osfs import OsFs\n"
        "held = OsFs(sys.argv[1]).lock('l'); print('held', flush=True); sys.stdin.read()"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(osfs.__file__).parents[2])}
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(DataDirLocked):
            fs.lock("l")
        other.kill()
        other.wait(timeout=60)
    fs.lock("l").close()


def test_a_file_system_without_flock_refuses(fs: OsFs, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_flock(fd: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "nope")

    monkeypatch.setattr(fcntl, "flock", no_flock)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="no working flock"):
        fs.lock(".topics.lock")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL])
def test_without_fallocate_files_are_extended(fs: OsFs, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def unsupported(fd: int, off: int, n: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(osfs, "_fallocate", unsupported)
    file = RetryingFs(fs).open("a", "create")
    write_all(file, 0, b"abc")
    file.allocate(10_000)
    file.allocate(100)
    assert (file.size(), file.pread(0, 4)) == (10_000, b"abc\0")
    file.close()


def test_an_unreadable_answer_is_not_taken_for_absent(fs: OsFs, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: str) -> os.stat_result:
        raise PermissionError(errno.EACCES, "no", path)

    monkeypatch.setattr(os, "stat", broken)
    for call in (fs.exists, fs.is_dir):
        with pytest.raises(PermissionError):
            call("a")


def test_a_mapping_outlives_its_file_and_its_name(fs: OsFs) -> None:
    install(fs, "a", b"payload")
    file = fs.open("a")
    view = file.mmap()
    file.close()
    fs.unlink("a")
    assert bytes(view[3:]) == b"load"
    with pytest.raises(TypeError):
        view[0] = 1
    install(fs, "empty", b"")
    empty = fs.open("empty")
    assert len(empty.mmap()) == 0
    empty.close()


def test_a_closed_file_answers_ebadf_and_closes_twice(fs: OsFs) -> None:
    file = fs.open("a", "create")
    file.close()
    file.close()
    for call in (file.size, file.fsync, file.datasync, file.mmap, lambda: file.pwrite(0, b"x")):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.EBADF


@pytest.mark.parametrize("make", [lambda tmp: OsFs(str(tmp)), lambda tmp: SimFs()], ids=["os", "sim"])
def test_helpers_make_read_and_remove(make: object, tmp_path: Path) -> None:
    assert callable(make)
    fs = make(tmp_path)
    make_dirs(fs, "a/b/c")
    make_dirs(fs, "a/b/c")
    install(fs, "a/b/file", b"1")
    install(fs, "a/b/file", b"22")
    install(fs, "a/b/c/other", b"")
    assert read_file(fs, "a/b/file") == b"22"
    assert read_file(fs, "a/b/c/other") == b""
    with pytest.raises(FileNotFoundError):
        read_file(fs, "a/none")
    remove_tree(fs, "a")
    remove_tree(fs, "a")
    assert fs.listdir(".") == []


def test_the_parent_of_a_path() -> None:
    assert [parent(p) for p in ("a/b", "a", "/a", "/a/b/", "a/b/c")] == ["a", ".", "/", "/a", "a/b"]
