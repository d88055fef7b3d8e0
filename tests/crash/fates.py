"""Fates: every way in which a power cut may treat the changes that no sync has covered yet, listed and not drawn.

    keep, lose, sizes        all of them, none of them, their lengths without their bytes
    names                    any subset of the pending renames, creates and unlinks
    torn                     one file up to a byte, the others kept or lost
    only                     any subset of one file's writes, so that later ones survive without earlier ones
    sector, flip             one file with a sector of zeros, or a wrong bit
    mixed                    each file a fate of its own, by chance

Where there are too many (a long write can be torn at thousands of bytes, eight names have 256 subsets), the ends and an
even choice between them are taken, and `fineness` says how many; 0 leaves out all that are aimed at one file or name.
Equal outcomes are told apart by the disk they leave, not here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from random import Random

from topics.testing import SimFs
from topics.testing.powercut import SECTOR_BYTES, Mixed, SizeWithoutData, flip, keep_bytes, zero_sector
from topics.testing.simdisk import Change, NameChange, PowerCutFate

SUBSETS_MAX = 16


class Pending:
    """As a fate it keeps everything, and remembers what it was asked about."""

    def __init__(self, disk: SimFs) -> None:
        self.files: dict[str, list[Change]] = {}
        self.renames: list[NameChange] = []
        twin = disk.clone()
        twin.power_cut(pattern=self)

    def changes(self, path: str, pending: Sequence[Change]) -> Iterable[Change]:
        self.files[path] = list(pending)
        return pending

    def names(self, pending: Sequence[NameChange]) -> Iterable[NameChange]:
        self.renames = list(pending)
        return pending


class Chosen:
    """`files` survive as given, other files whole or not at all; names by their places in the list."""

    def __init__(self, files: dict[str, list[Change]], *, keeps_rest: bool, names: Sequence[int] | None = None) -> None:
        self._files = files
        self._keeps_rest = keeps_rest
        self._names = names

    def changes(self, path: str, pending: Sequence[Change]) -> Iterable[Change]:
        if path in self._files:
            return self._files[path]
        return pending if self._keeps_rest else ()

    def names(self, pending: Sequence[NameChange]) -> Iterable[NameChange]:
        if self._names is None:
            return pending if self._keeps_rest else ()
        return [pending[at] for at in self._names]


def fates(disk: SimFs, rng: Random, *, fineness: int) -> Iterator[tuple[str, PowerCutFate]]:
    """Each with a name for messages. `fineness` bounds tears per file and the number of mixed fates."""
    pending = Pending(disk)
    yield "keep", Chosen({}, keeps_rest=True)
    yield "lose", Chosen({}, keeps_rest=False)
    yield "sizes", SizeWithoutData()
    for at in range(fineness or 2):
        yield f"mixed {at}", Mixed(rng)
    if fineness:
        yield from _aimed(pending, rng, fineness=fineness)


def _aimed(pending: Pending, rng: Random, *, fineness: int) -> Iterator[tuple[str, PowerCutFate]]:
    for chosen in _subsets(len(pending.renames)):
        for keeps_rest in (True, False):
            yield f"names {chosen} rest {keeps_rest}", Chosen({}, keeps_rest=keeps_rest, names=chosen)
    for path, changes in pending.files.items():
        for how, edited in _edits(changes, rng, fineness=fineness):
            kept = list(edited)
            for keeps_rest in (True, False) if len(pending.files) > 1 or pending.renames else (True,):
                yield f"{path} {how} rest {keeps_rest}", Chosen({path: kept}, keeps_rest=keeps_rest)


def _edits(changes: list[Change], rng: Random, *, fineness: int) -> Iterator[tuple[str, Iterable[Change]]]:
    size = sum(len(change.data) for change in changes)
    for at in _tears(changes, size, fineness):
        yield f"torn at {at}", keep_bytes(changes, at)
    for chosen in _subsets(len(changes)):
        yield f"only {chosen}", [changes[at] for at in chosen]
    for start in range(0, size, max(SECTOR_BYTES, size // fineness)):
        yield f"sector at {start}", zero_sector(changes, start)
    for at in _spread(size, fineness // 2):
        yield f"flip at {at}", flip(changes, at, 1 << rng.randrange(8))


def _tears(changes: list[Change], size: int, fineness: int) -> list[int]:
    """The ends of the writes, a byte to either side, and bytes between."""
    ends = {0}
    for change in changes:
        ends.add(max(ends) + len(change.data))
    near = {at + step for at in ends for step in (-1, 0, 1)}
    return sorted(at for at in {*near, *_spread(size, fineness)} if 0 <= at <= size)


def _spread(size: int, count: int) -> range:
    return range(0, size, max(1, size // max(count, 1)))


def _subsets(count: int) -> Iterator[tuple[int, ...]]:
    """Of the places `0..count-1`: all if they are few, else each alone, all but each, and each beginning."""
    everything = tuple(range(count))
    if 1 << count <= SUBSETS_MAX:
        for size in range(count + 1):
            yield from combinations(everything, size)
        return
    for at in everything:
        yield (at,)
        yield everything[:at] + everything[at + 1 :]
        yield everything[:at]
