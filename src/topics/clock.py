"""Time, and the one fact about the host that recovery needs.

Nothing else in the package reads a clock. A `Clock` is what the world shows, wall time included, which may jump back;
`EngineClock` is what decisions are made with, and never does. The simulated pair lives in `topics.testing.clock`.
"""

import time
from pathlib import Path
from typing import Protocol

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """What the world shows."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may run backwards."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never runs backwards. For measuring, not for deciding."""


class Host(Protocol):
    """What the kernel says about itself."""

    def boot_id(self) -> str:
        """The same text for as long as the kernel lives, which says nothing of its disks (`Fs.mount_id`); empty if
        unknown, which counts as a reboot."""


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)


class SystemHost:
    def __init__(self, boot_id_file: Path = BOOT_ID_FILE) -> None:
        self._boot_id_file = boot_id_file

    def boot_id(self) -> str:
        try:
            return self._boot_id_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""


class EngineClock:
    """`now_ms` for every decision: at least the wall clock, never less than before."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._now_ms = 0

    @property
    def source(self) -> Clock:
        """What it reads, for those who measure and do not decide."""
        return self._clock

    def now_ms(self) -> int:
        wall_ms = self._clock.wall_ms()
        if wall_ms > self._now_ms:
            self._now_ms = wall_ms
        return self._now_ms

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def running_ms(self) -> int:
        """For waits that somebody sits through: from an arbitrary start, and it passes whatever the wall clock does.
        `now_ms` stands still, for an hour if it has to be, while the wall clock is behind it."""
        return round(self._clock.monotonic() * 1000)

    def behind_ms(self) -> int:
        """How far the wall clock is behind what was stored or used."""
        return self.now_ms() - self._clock.wall_ms()

    def raise_to(self, floor_ms: int) -> None:
        """Recovery found a timestamp this high: time goes on from there."""
        self._now_ms = max(self._now_ms, floor_ms)
