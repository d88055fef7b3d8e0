"""Crashing at every call: one run, and then the disk as each crash would have left it.

    for state in crash_states(disk, lambda fs: install(fs, "CURRENT", b"new"), rng=Random(1)):
        assert read_file(state.disk, "CURRENT") in (b"old", b"new"), state

The run happens once. Before each call that changes something the disk is cloned, so what the hundredth point costs does
not grow with the ninety-nine before it; points between which nothing changed are one. Every point is given as a kill
and, where anything is pending, as a power cut of each pattern. The order is the same for the same seed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from topics.storage.fs import Fs
from topics.testing.faultfs import CHANGING, FaultFs, FsCall
from topics.testing.powercut import POWER_PATTERNS
from topics.testing.simfs import SimFs


@dataclass(frozen=True)
class CrashState:
    """A disk to start on. `call` is the one that did not happen (None: all did), `how` is "kill" or a power pattern."""

    point: int
    call: FsCall | None
    how: str
    note: object
    disk: SimFs

    def __str__(self) -> str:
        before = f"before {self.call.kind} {self.call.path}" if self.call else "at the end"
        return f"{self.how} at point {self.point}, {before}"


class CrashPoints:
    """Clones of one disk, taken while calls pass through `fs`. Set `fs.hook` aside for it."""

    def __init__(self, disk: SimFs, *, note: Callable[[], object] = lambda: None) -> None:
        self.disk = disk
        self.note = note
        self.points: list[tuple[FsCall | None, object, SimFs]] = []
        self._changes_seen = -1

    def before(self, call: FsCall) -> None:
        if call.kind in CHANGING:
            self._add(call)

    def end(self) -> None:
        self._add(None)

    def _add(self, call: FsCall | None) -> None:
        if self.disk.changes_seen != self._changes_seen:
            self._changes_seen = self.disk.changes_seen
            self.points.append((call, self.note(), self.disk.clone()))

    def states(self, *, rng: Random, patterns: Sequence[str] = POWER_PATTERNS) -> Iterator[CrashState]:
        for point, (call, note, disk) in enumerate(self.points):
            yield CrashState(point, call, "kill", note, disk.clone())
            for pattern in patterns if disk.dirty else ():
                after = disk.clone()
                after.power_cut(rng, pattern)
                yield CrashState(point, call, pattern, note, after.reboot())


def crash_states(
    disk: SimFs,
    run: Callable[[Fs], object],
    *,
    rng: Random,
    patterns: Sequence[str] = POWER_PATTERNS,
    note: Callable[[], object] = lambda: None,
) -> Iterator[CrashState]:
    """Run `run` on `disk`, then give every crash it could have had. `note` says at each point what was acked."""
    points = CrashPoints(disk, note=note)
    run(FaultFs(disk, hook=points.before))
    points.end()
    return points.states(rng=rng, patterns=patterns)
