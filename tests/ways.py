"""Every way in which a topic can change under a stored position: the rows of the table in docs/loss.md.

A world is a data directory with ten records in the topic "t", and a copy of it from when there were five. A reader
stores its position behind the tenth; then something happens; then the reader comes back and must hear what `TOLD` says.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import topics

SETTINGS: dict[str, Any] = {"wal_shards": 2, "wal_file_bytes": 1 << 20}
TOPIC = "t"
Told = list[int | str]
"""Seqs, and the reasons of gaps among them; `gone` alone if there is no topic."""


class World:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / "data"
        self.backup = root / "backup"
        self.write(5)
        shutil.copytree(self.data, self.backup)
        self.write(5)

    def write(self, count: int) -> None:
        with topics.open(self.data, **SETTINGS) as db:
            db.topic(TOPIC).append_many(list(range(count)))

    def drop(self) -> None:
        with topics.open(self.data, **SETTINGS) as db:
            db.topic(TOPIC).drop()

    def recreate(self, count: int) -> None:
        self.drop()
        self.write(count)


def put_back_in_place(source: Path, target: Path) -> None:
    """As `rsync -a --delete` does it: what has the same size and time stays, and everything else becomes a new file."""
    names = {path.relative_to(source) for path in source.rglob("*")}
    for path in sorted(target.rglob("*"), reverse=True):
        if path.relative_to(target) not in names:
            path.rmdir() if path.is_dir() else path.unlink()
    for name in sorted(names):
        old, new = source / name, target / name
        if old.is_dir():
            new.mkdir(exist_ok=True)
        elif not new.exists() or _looks(old) != _looks(new):
            shutil.copy2(old, temp := new.with_name(new.name + ".rsync"))
            os.replace(temp, new)


def _looks(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


# --- the ways --------------------------------------------------------------------------------------------------------


def dropped(world: World) -> None:
    world.drop()


def recreated_shorter(world: World) -> None:
    world.recreate(3)


def recreated_equal(world: World) -> None:
    world.recreate(10)


def recreated_longer(world: World) -> None:
    world.recreate(20)


def directory_replaced(world: World) -> None:
    shutil.rmtree(world.data)
    world.write(20)


def restored_from_an_older_copy(world: World) -> None:
    shutil.rmtree(world.data)
    shutil.copytree(world.backup, world.data)
    world.write(15)


def restored_in_place(world: World) -> None:
    put_back_in_place(world.backup, world.data)
    world.write(15)


def copied(world: World) -> None:
    """To another disk, say: the position lies in what both have."""
    shutil.copytree(world.data, world.root / "elsewhere")
    shutil.rmtree(world.data)
    world.data = world.root / "elsewhere"
    world.write(5)


def renamed(world: World) -> None:
    world.data = world.data.rename(world.root / "renamed")
    world.write(5)


def permissions_changed(world: World) -> None:
    for path in world.data.rglob("*"):
        path.chmod(0o700)
    world.write(5)


def identity_removed(world: World) -> None:
    """What an operator does who has put back a disk as a whole; here nothing is missing."""
    (world.data / "identity").unlink()
    world.write(5)


def untouched(world: World) -> None:
    world.write(5)


Way = Callable[[World], None]
ANEW: Told = ["recreated", *range(1, 21)]
ON: Told = list(range(11, 16))
TOLD: dict[Way, Told] = {
    dropped: ["gone"],
    recreated_shorter: ["recreated", 1, 2, 3],
    recreated_equal: ["recreated", *range(1, 11)],
    recreated_longer: ANEW,
    directory_replaced: ANEW,
    restored_from_an_older_copy: ANEW,
    restored_in_place: ANEW,
    copied: ON,
    renamed: ON,
    permissions_changed: ON,
    identity_removed: ON,
    untouched: ON,
}


def shown(items: Sequence[Any]) -> Told:
    """What a library reader got."""
    return [item.reason if isinstance(item, topics.Gap) else item.seq for item in items]
