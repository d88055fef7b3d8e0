"""SimFs and OsFs answer every call sequence alike, results and errors, as long as nothing fails."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from topics.storage.fs import File, Fs, Mode
from topics.storage.osfs import OsFs
from topics.testing.simfs import SimFs

NAMES = ("a", "b", "d", "d/a", "d/e", "d/e/a", "a/x", "f")
MODES: tuple[Mode, ...] = ("r", "rw", "create", "new", "ensure")
Call = Callable[["Pair"], object]


class Pair:
    """One file system, its open files, and the views that were mapped."""

    def __init__(self, fs: Fs) -> None:
        self.fs = fs
        self.files: list[File] = []
        self.views: list[memoryview] = []

    def open(self, path: str, mode: Mode) -> None:
        self.files.append(self.fs.open(path, mode))

    def map(self, i: int) -> int:
        self.views.append(self.files[i].mmap())
        return len(self.views[-1])

    def seen(self) -> list[bytes]:
        return [bytes(view) for view in self.views]

    def tree(self, path: str = ".") -> list[object]:
        below = [f"{path}/{name}" for name in self.fs.listdir(path)]
        return [(p, self.tree(p)) if self.fs.is_dir(p) else (p, self.fs.stat_len(p)) for p in below]


def random_call(rng: Random, n_files: int, *, maps: bool) -> Call:
    path, other = rng.choice(NAMES), rng.choice(NAMES)
    mode = rng.choice([mode for mode in MODES if not maps or mode != "create"])
    i = rng.randrange(n_files) if n_files else -1
    off, n = rng.randrange(2000), rng.randrange(900)
    data = rng.randbytes(n)
    on_names: list[Call] = [
        lambda p: p.open(path, mode),
        lambda p: p.fs.mkdir(path),
        lambda p: p.fs.rename(path, other),
        lambda p: p.fs.unlink(path),
        lambda p: p.fs.rmdir(path),
        lambda p: p.fs.listdir(path),
        lambda p: p.fs.exists(path),
        lambda p: p.fs.is_dir(path),
        lambda p: p.fs.sync_dir(path),
    ]
    on_files: list[Call] = [
        lambda p: p.files[i].pread(off, n),
        lambda p: p.files[i].pwrite(off, data),
        lambda p: p.files[i].pwritev(off, [data[:10], data[10:]]),
        lambda p: p.files[i].allocate(off + 1),
        lambda p: p.files[i].size(),
        lambda p: p.files[i].datasync(),
        lambda p: p.files[i].fsync(),
        lambda p: p.files[i].close(),
    ]
    # Cutting a mapped file kills real readers of the cut part, so a run either maps or cuts.
    map_or_cut: Call = (lambda p: p.map(i)) if maps else (lambda p: p.files[i].truncate(off))
    return rng.choice(on_names + [*on_files, map_or_cut] * 2 if n_files else on_names)


def outcome(pair: Pair, call: Call) -> object:
    try:
        return call(pair)
    except OSError as error:
        return type(error), error.errno


@pytest.mark.parametrize("seed", range(60))
def test_random_calls_give_the_same_results_as_on_a_real_disk(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    maps = seed % 2 == 0
    real, sim = Pair(OsFs(str(tmp_path))), Pair(SimFs())
    for step in range(250):
        n_files = len(sim.files)
        call = random_call(rng, n_files, maps=maps)
        assert outcome(sim, call) == outcome(real, call), f"seed {seed}, step {step}"
        assert sim.seen() == real.seen(), f"seed {seed}, step {step}: mappings"
    assert sim.tree() == real.tree()
    for pair in (real, sim):
        for file in pair.files:
            file.close()
