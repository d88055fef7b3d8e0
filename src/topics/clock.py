"""Time, and the one fact about the host that recovery needs.

Nothing else in the package reads a clock. A `Clock` is what the world shows, wall time included, which may jump;
`EngineClock` is what decisions are made with, and never jumps (`docs/spec/semantics.md#sec-1-3`). The simulated pair
lives in `topics.testing.clock`.
"""

import time
from functools import partial
from pathlib import Path
from typing import Protocol

JUMP_MS = 60_000
"""A wall clock that jumps ahead by more than this is not believed at once: TTL would expire what nobody asked to
remove. A step of a time daemon is smaller."""
BELIEVE_MS = 600_000
"""A jump is believed after this time: long enough for a time daemon, or an operator, to take a mistake back."""
START_JUMP_MS = 30 * 24 * 3_600_000
"""At a start, a wall clock further ahead of the stored times than this is not believed at once. A start cannot tell a
wrong clock from a server that was off for long, and servers are rarely off for longer."""
SLEW = 16
"""While the wall clock is behind, engine time runs a 16th slower, until they meet again."""

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """What the machine's clocks show."""

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch; may run backwards."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never runs backwards, and counts time in which the machine slept."""


class Host(Protocol):
    """What the kernel says about itself."""

    def boot_id(self) -> str:
        """The same text for as long as the kernel lives, which says nothing of its disks (`Fs.mount_id`); empty if
        unknown, which counts as a reboot."""


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    # Linux: CLOCK_MONOTONIC stands still while the machine sleeps, and waking up would look like a wrong wall clock.
    monotonic = staticmethod(
        partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
    )


class SystemHost:
    def __init__(self, boot_id_file: Path = BOOT_ID_FILE) -> None:
        self._boot_id_file = boot_id_file

    def boot_id(self) -> str:
        try:
            return self._boot_id_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""


class EngineClock:
    """`now_ms` for every decision: never less than before, never standing still, and held to the wall clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall_ms = clock.wall_ms
        self._monotonic = clock.monotonic
        self._now_ms = 0
        self._floor_ms = 0  # the highest time that recovery found, until the clock is first read
        self._seen_ms: int | None = None  # the monotonic clock when it was last read
        self._slewed_ms = 0  # time since a 16th of it was last held back
        # A wall clock that is not believed yet: since when, and where it was, both by the monotonic clock.
        self._jumped_at_ms: int | None = None
        self._jumped_to_ms = 0

    @property
    def source(self) -> Clock:
        """The clock below, for those who measure and do not decide."""
        return self._clock

    def now_ms(self) -> int:
        wall_ms, at_ms = self._wall_ms(), int(self._monotonic() * 1000 + 0.5)
        if self._seen_ms is None:
            return self._begin(wall_ms, at_ms)
        passed_ms = at_ms - self._seen_ms
        ahead_ms = wall_ms - self._now_ms - passed_ms
        self._seen_ms = at_ms
        if ahead_ms or self._jumped_at_ms is not None:  # else they agree, as nearly always
            passed_ms += self._correction_ms(ahead_ms, passed_ms, at_ms)
        self._now_ms += passed_ms
        return self._now_ms

    def _begin(self, wall_ms: int, at_ms: int) -> int:
        """The first reading: there is nothing but stored times to judge the wall clock by."""
        self._seen_ms = at_ms
        floor_ms = self._floor_ms
        believed = not floor_ms or wall_ms - floor_ms <= START_JUMP_MS
        if not believed:
            self._jumped_at_ms, self._jumped_to_ms = at_ms, wall_ms - at_ms
        self._now_ms = max(wall_ms, floor_ms) if believed else floor_ms
        return self._now_ms

    def _correction_ms(self, ahead_ms: int, passed_ms: int, at_ms: int) -> int:
        """What to add to the time that has passed; it never takes away more than that."""
        if ahead_ms < 0:
            self._jumped_at_ms = None
            self._slewed_ms += passed_ms
            held_back_ms = min(self._slewed_ms // SLEW, -ahead_ms, passed_ms)
            self._slewed_ms -= held_back_ms * SLEW
            return -held_back_ms
        self._slewed_ms = 0
        if ahead_ms <= JUMP_MS or self._has_lasted(at_ms, self._now_ms + passed_ms + ahead_ms - at_ms):
            self._jumped_at_ms = None
            return ahead_ms
        return 0

    def _has_lasted(self, at_ms: int, jumped_to_ms: int) -> bool:
        """Whether the wall clock has been this far ahead for long enough. `jumped_to_ms`: what it shows, less the
        monotonic clock: the same for as long as it goes on without a jump."""
        if self._jumped_at_ms is None or abs(jumped_to_ms - self._jumped_to_ms) > JUMP_MS:
            self._jumped_at_ms, self._jumped_to_ms = at_ms, jumped_to_ms
        return at_ms - self._jumped_at_ms >= BELIEVE_MS

    def monotonic(self) -> float:
        return self._monotonic()

    def running_ms(self) -> int:
        """For waits: milliseconds from an arbitrary start, whatever the wall clock does."""
        return int(self._monotonic() * 1000 + 0.5)

    def behind_ms(self) -> int:
        """How far the wall clock is behind what was stored or used; negative if it is ahead and not believed yet."""
        return self.now_ms() - self._clock.wall_ms()

    def raise_to(self, floor_ms: int) -> None:
        """Recovery found a timestamp this high: time goes on from there."""
        self._floor_ms = max(self._floor_ms, floor_ms)
        if self._seen_ms is not None:
            self._now_ms = max(self._now_ms, floor_ms)
