"""Conversion in another process: the same bytes as in our own thread, and nothing depends on it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import topics
from topics.clock import SystemClock, SystemHost
from topics.config import Settings
from topics.embedded.database import Database
from topics.errors import Corruption
from topics.formats.wal.frame import encode_appends
from topics.runtime.background import checkpointer
from topics.runtime.drivers.blocking import BlockingDriver
from topics.runtime.kernel import Kernel, recover
from topics.storage.checkpoint.conversion import FrameSource, InlineConverter
from topics.storage.checkpoint.converter_process import ConverterProcess
from topics.storage.osfs import OsFs, RetryingFs
from topics.storage.wal.wal_files import WalFiles

TOPIC = 7


class Bench:
    """A WAL file with records of one topic, others of the log in between."""

    def __init__(self, path: Path, *, count: int = 300, data_bytes: int = 20) -> None:
        made = encode_appends(
            topic_id=TOPIC,
            first_seq=1,
            ts=1000,
            datas=[b'{"d":"%s"}' % (b"x" * (data_bytes + n % 9)) for n in range(count)],
            nodes=[None if n % 3 else b"node" for n in range(count)],
            tags=[None if n % 2 else b"tag-%d" % n for n in range(count)],
            durable=False,
        )
        path.write_bytes(made.buffer)
        fs = OsFs()
        self.path = path
        self.files = WalFiles()
        self.file = self.files.add(key="", number=1, path=str(path), file=fs.open(str(path), "rw")).index
        self.offs = np.array(made.offsets, np.int64)
        self.lens = np.array(made.lengths, np.int64)

    def frames(self, *, every: int = 1) -> FrameSource:
        kept = slice(None, None, every)
        return FrameSource(self.file, self.offs[kept], self.lens[kept], np.arange(1, len(self.offs) + 1)[kept])

    def damage(self, seq: int) -> None:
        with self.path.open("r+b") as file:
            file.seek(int(self.offs[seq - 1]) + 45)
            file.write(b"!")


Apart = Callable[..., ConverterProcess]


@pytest.fixture
def apart() -> Iterator[Apart]:
    made: list[ConverterProcess] = []

    def make(bench: Bench, **kwargs: float) -> ConverterProcess:
        made.append(ConverterProcess(bench.files, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


def same(bench: Bench, converter: ConverterProcess, frames: FrameSource, *, base: int = 0) -> bool:
    """As our own thread makes them."""
    buffer, idx = converter.convert(frames, base=base)
    expected = InlineConverter(bench.files.pread).convert(frames, base=base)
    return (bytes(buffer), idx.tobytes()) == (bytes(expected.buffer), expected.idx.tobytes())


def test_another_process_makes_the_same_frames(tmp_path: Path, apart: Apart) -> None:
    bench = Bench(tmp_path / "wal")
    converter = apart(bench)
    for every in (1, 2, 50):
        assert same(bench, converter, bench.frames(every=every), base=12_345)
    assert converter.pid is not None


def test_memory_grows_with_what_is_asked(tmp_path: Path, apart: Apart) -> None:
    small, large = Bench(tmp_path / "small"), Bench(tmp_path / "large", count=40, data_bytes=100_000)
    converter = apart(large)
    assert same(large, converter, FrameSource(large.file, *(column[:3] for column in large.frames()[1:])))
    assert same(large, converter, large.frames())
    assert same(large, converter, large.frames(every=7))
    assert small.path.stat().st_size < large.path.stat().st_size / 50


def test_frames_in_memory_do_not_leave_it(tmp_path: Path, apart: Apart) -> None:
    bench = Bench(tmp_path / "wal")
    converter = apart(bench)
    assert same(bench, converter, bench.frames()._replace(source=bench.path.read_bytes()))
    assert converter.pid is None


def test_damage_is_found_there_and_said_here(tmp_path: Path, apart: Apart) -> None:
    bench = Bench(tmp_path / "wal")
    converter = apart(bench)
    assert same(bench, converter, bench.frames())
    bench.damage(30)
    with pytest.raises(Corruption, match="xxh3"):
        converter.convert(bench.frames(), base=0)
    intact = FrameSource(bench.file, *(column[40:] for column in bench.frames()[1:]))
    assert same(bench, converter, intact)
    with pytest.raises(Corruption, match="seq"):
        converter.convert(intact._replace(seqs=intact.seqs + 1), base=0)


def test_what_it_does_not_do_is_done_here(tmp_path: Path, apart: Apart, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(tmp_path / "wal")
    converter = apart(bench)
    assert same(bench, converter, bench.frames())
    assert converter.pid is not None
    os.kill(converter.pid, signal.SIGKILL)
    assert all(same(bench, converter, bench.frames()) for _ in range(2))
    assert caplog.text.count("checkpoints take the server's own time") == 1


def test_it_is_not_waited_for_without_end(tmp_path: Path, apart: Apart, caplog: pytest.LogCaptureFixture) -> None:
    """It cannot be up within a millisecond."""
    bench = Bench(tmp_path / "wal")
    converter = apart(bench, wait_s=0.001)
    assert same(bench, converter, bench.frames())
    assert converter.pid is None
    assert "timed out" in caplog.text


def test_signals_for_the_server_do_not_end_it(tmp_path: Path, apart: Apart) -> None:
    bench = Bench(tmp_path / "wal")
    converter = apart(bench)
    assert same(bench, converter, bench.frames())
    pid = converter.pid
    assert pid is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    assert same(bench, converter, bench.frames())
    assert converter.pid == pid


OWNER = """
import os, signal, sys
from pathlib import Path
from tests.storage.segments.test_conversion import Bench
from topics.storage.checkpoint.converter_process import ConverterProcess
bench = Bench(Path(sys.argv[1]))
converter = ConverterProcess(bench.files)
converter.convert(bench.frames(), base=0)
print(converter.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_ends_with_its_owner(tmp_path: Path) -> None:
    """Who waits for the end of our output waits for the child, too: it must not have kept it."""
    done = subprocess.run(
        [sys.executable, "-c", OWNER, str(tmp_path / "wal")], stdout=subprocess.PIPE, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    try:
        child = os.pidfd_open(int(done.stdout))
    except ProcessLookupError:
        return
    assert select.select([child], [], [], 30)[0], "it is still there"
    os.close(child)


def open_apart(path: Path) -> tuple[Database, ConverterProcess]:
    settings = Settings.from_kwargs(data_dir=str(path))
    recovered = recover(RetryingFs(OsFs()), settings=settings, clock=SystemClock(), host=SystemHost())
    driver = BlockingDriver(cold_threads=1)
    converter = ConverterProcess(recovered.store.files)
    return Database(Kernel(recovered, settings=settings, driver=driver, converter=converter), driver), converter


def test_a_long_checkpoint_uses_it_and_a_short_one_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointer, "ELSEWHERE_RECORDS_MIN", 100)
    database, converter = open_apart(tmp_path / "data")
    with database:
        topic = database.topic("t", durability="disk")
        for count, is_used in ((99, False), (9_000, True)):
            topic.append_many(range(count))
            database.checkpoint()
            assert (converter.pid is not None) == is_used
    assert converter.pid is None
    with topics.open(str(tmp_path / "data")) as again:
        values = [record.value for record in again.topic("t").read()]
        assert values == [*range(99), *range(9_000)]
