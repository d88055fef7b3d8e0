"""Power cuts: which of the pending changes survive one.

A fate is asked once per file for its bytes and once for all names. `POWER_PATTERNS` names the fates that a crash test
should try at every point; each is built from a random generator and gives the same outcome for the same seed. The
functions below them aim at one file and one byte, for tests that go through every byte.

Only pending bytes are ever touched: what a sync promised stays, whatever the fate.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from random import Random

from topics.testing.simdisk import Change, NameChange, PowerCutFate

SECTOR_BYTES = 512
Edit = Callable[[Sequence[Change]], Iterable[Change]]


class KeepAll:
    """Everything pending made it: as a kill, or a kernel that was quick."""

    def changes(self, path: str, pending: Sequence[Change]) -> Iterable[Change]:
        return pending

    def names(self, pending: Sequence[NameChange]) -> Iterable[NameChange]:
        return pending


class LoseAll:
    """Only what was synced is there."""

    def changes(self, path: str, pending: Sequence[Change]) -> Iterable[Change]:
        return ()

    def names(self, pending: Sequence[NameChange]) -> Iterable[NameChange]:
        return ()


class _Random(KeepAll):
    def __init__(self, rng: Random) -> None:
        self.rng = rng


class KeepPrefixTorn(_Random):
    """Each file keeps its changes up to a random byte; names up to a random one."""

    def changes(self, path: str, pending: Sequence[Change]) -> Iterable[Change]:
        return keep_bytes(pending, self.rng.randint(0, _bytes_of(pending)))

    def names(self, pending: Sequence[NameChange]) -> Iterable[NameChange]:
        return pending[: self.rng.randint(0, len(pending))]


class Reorder(_Random):
    """Any subset survives, in bytes and in names."""

    def changes(self, path: str, pending: Sequence[Change]) -> Iterable[Change]:
        return [change for change in pending if self.rng.random() < 0.5]

    def names(self, pending: Sequence[NameChange]) -> Iterable[NameChange]:
        return [change for change in pending if self.rng.random() < 0.5]


class ZeroSector(_Random):
    """One sector of each file's pending bytes reads as zeros."""

    def changes(self, path: str, pending: Sequence[Change]) -> Iterable[Change]:
        return zero_sector(pending, self.rng.randrange(_bytes_of(pending) or 1))


class Flip(_Random):
    """One bit of each file's pending bytes is wrong."""

    def changes(self, path: str, pending: Sequence[Change]) -> Iterable[Change]:
        return flip(pending, self.rng.randrange(_bytes_of(pending) or 1), 1 << self.rng.randrange(8))


class SizeWithoutData(KeepAll):
    """The sizes survive, the bytes written do not."""

    def changes(self, path: str, pending: Sequence[Change]) -> Iterable[Change]:
        return [Change("extend", c.at + len(c.data)) if c.kind == "write" else c for c in pending]


class Mixed(_Random):
    """Each file meets a fate of its own; names survive independently."""

    def changes(self, path: str, pending: Sequence[Change]) -> Iterable[Change]:
        return self.rng.choice(_FATES)(self.rng).changes(path, pending)

    def names(self, pending: Sequence[NameChange]) -> Iterable[NameChange]:
        return self.rng.choice(_FATES)(self.rng).names(pending)


_FATES: tuple[Callable[[Random], PowerCutFate], ...] = (
    lambda rng: KeepAll(),
    lambda rng: LoseAll(),
    KeepPrefixTorn,
    Reorder,
    ZeroSector,
    Flip,
    lambda rng: SizeWithoutData(),
)
PATTERN_FATES: dict[str, Callable[[Random], PowerCutFate]] = dict(
    zip(
        ("keep_all", "lose_all", "keep_prefix_torn", "reorder", "zero_sector", "flip", "size_without_data"),
        _FATES,
        strict=True,
    )
) | {"random": Mixed}
POWER_PATTERNS: tuple[str, ...] = tuple(PATTERN_FATES)


# --- aimed at one file ------------------------------------------------------------------------------------------------


class Aimed(KeepAll):
    """`edit` decides for the files whose path matches; all else survives whole."""

    def __init__(self, path: str, edit: Edit) -> None:
        self.path = path
        self.edit = edit

    def changes(self, path: str, pending: Sequence[Change]) -> Iterable[Change]:
        return self.edit(pending) if fnmatchcase(path, self.path) else pending


def torn_at(n: int, path: str = "*") -> PowerCutFate:
    """The first `n` pending bytes survive."""
    return Aimed(path, lambda pending: keep_bytes(pending, n))


def sector_zeroed_at(n: int, path: str = "*") -> PowerCutFate:
    """The 512-byte sector that holds pending byte `n` is zero where it was pending."""
    return Aimed(path, lambda pending: zero_sector(pending, n))


def flipped_at(n: int, path: str = "*", *, mask: int = 0x01) -> PowerCutFate:
    """Pending byte `n` is wrong."""
    return Aimed(path, lambda pending: flip(pending, n, mask))


def only(*indices: int, path: str = "*") -> PowerCutFate:
    """Exactly these pending changes survive, counted from 0."""
    return Aimed(path, lambda pending: [change for i, change in enumerate(pending) if i in indices])


class NamesLost(KeepAll):
    """Bytes survive; a pending create, rename or unlink of a matching name does not."""

    def __init__(self, name: str = "*") -> None:
        self.name = name

    def names(self, pending: Sequence[NameChange]) -> Iterable[NameChange]:
        return [change for change in pending if not fnmatchcase(change.name, self.name)]


# --- editing a run of changes -----------------------------------------------------------------------------------------


def _bytes_of(pending: Sequence[Change]) -> int:
    return sum(len(change.data) for change in pending)


def keep_bytes(pending: Sequence[Change], n: int) -> Iterator[Change]:
    """Changes in order until `n` written bytes are used up; the last write is cut."""
    for change in pending:
        if change.kind == "write":
            if not n:
                return
            change = change._replace(data=change.data[:n])
            n -= len(change.data)
        yield change


def zero_sector(pending: Sequence[Change], n: int) -> Iterator[Change]:
    for start, change in _counted(pending):
        if start <= n < start + len(change.data):
            at = change.at + n - start
            lo = max(0, at // SECTOR_BYTES * SECTOR_BYTES - change.at)
            hi = min(len(change.data), (at // SECTOR_BYTES + 1) * SECTOR_BYTES - change.at)
            change = change._replace(data=change.data[:lo] + bytes(hi - lo) + change.data[hi:])
        yield change


def flip(pending: Sequence[Change], n: int, mask: int) -> Iterator[Change]:
    for start, change in _counted(pending):
        if start <= n < start + len(change.data):
            data = bytearray(change.data)
            data[n - start] ^= mask
            change = change._replace(data=bytes(data))
        yield change


def _counted(pending: Sequence[Change]) -> Iterator[tuple[int, Change]]:
    start = 0
    for change in pending:
        yield start, change
        start += len(change.data)
