"""Random calls with clones and crashes, compared with the plainest model of a disk that there is."""

from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

import pytest

from topics.testing import SimFs

NAMES = ("a", "b", "c", "c.tmp")


@dataclass
class ModelFile:
    live: bytes = b""
    durable: bytes = b""

    def write(self, off: int, data: bytes) -> None:
        self.live = self.live[:off].ljust(off, b"\0") + data + self.live[off + len(data) :]


@dataclass
class Model:
    """One directory. A sync copies live to durable; a power cut copies back."""

    live: dict[str, ModelFile] = field(default_factory=dict)
    durable: dict[str, ModelFile] = field(default_factory=dict)

    def lose_all(self) -> dict[str, bytes]:
        return {name: file.durable for name, file in sorted(self.durable.items())}

    def keep_all(self) -> dict[str, bytes]:
        return {name: file.live for name, file in sorted(self.live.items())}


def step(rng: Random, fs: SimFs, model: Model) -> None:
    name, other = rng.choice(NAMES), rng.choice(NAMES)
    action = rng.choice(("create", "write", "write", "truncate", "sync", "rename", "unlink", "sync_dir"))
    if action == "sync_dir":
        fs.sync_dir("d")
        model.durable = dict(model.live)
    elif action == "create":
        fs.open(f"d/{name}", "create").close()
        model.live.setdefault(name, ModelFile()).live = b""
    elif name in model.live:
        change(rng, fs, model, action, name, other)


def change(rng: Random, fs: SimFs, model: Model, action: str, name: str, other: str) -> None:
    file, path = model.live[name], f"d/{name}"
    off, data = rng.randrange(40), rng.randbytes(rng.randrange(1, 20))
    if action == "write":
        fs.open(path, "rw").pwrite(off, data)
        file.write(off, data)
    elif action == "truncate":
        fs.open(path, "rw").truncate(off)
        file.live = file.live[:off].ljust(off, b"\0")
    elif action == "sync":
        fs.open(path, "rw").datasync()
        file.durable = file.live
    elif action == "unlink":
        fs.unlink(path)
        del model.live[name]
    elif name != other:
        fs.rename(path, f"d/{other}")
        model.live[other] = model.live.pop(name)


def flat(dump: dict[str, bytes]) -> dict[str, bytes]:
    return {path.removeprefix("d/"): data for path, data in dump.items()}


def after(fs: SimFs, pattern: str) -> dict[str, bytes]:
    twin = fs.clone()
    twin.power_cut(Random(0), pattern)
    return flat(twin.reboot().dump())


@pytest.mark.parametrize("seed", range(40))
def test_clones_and_cuts_agree_with_the_model(seed: int) -> None:
    rng = Random(seed)
    fs, model = SimFs(), Model()
    fs.mkdir("d")
    fs.sync_dir(".")
    kept: list[tuple[SimFs, Model]] = []
    for _ in range(60):
        step(rng, fs, model)
        assert flat(fs.dump()) == model.keep_all()
        assert after(fs, "lose_all") == model.lose_all()
        assert after(fs, "keep_all") == model.keep_all()
        if rng.random() < 0.1:  # go on with the clone; what stays behind must not change
            kept.append((fs, deepcopy(model)))
            fs = fs.clone()
    for old, expected in kept:
        assert flat(old.dump()) == expected.keep_all()
        assert after(old, "lose_all") == expected.lose_all()


@pytest.mark.parametrize("seed", range(10))
def test_a_disk_that_lost_power_goes_on_as_a_new_one_with_that_content(seed: int) -> None:
    rng = Random(seed)
    fs, model = SimFs(), Model()
    fs.mkdir("d")
    fs.sync_dir(".")
    for _ in range(6):
        for _ in range(12):
            step(rng, fs, model)
        assert after(fs, "lose_all") == model.lose_all()
        fs.power_cut(rng, "random")
        fs = fs.reboot()
        assert not fs.dirty
        found = {name: ModelFile(data, data) for name, data in flat(fs.dump()).items()}
        model = Model(dict(found), dict(found))
