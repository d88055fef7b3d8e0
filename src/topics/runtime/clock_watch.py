"""ClockWatch: says once that the engine does not follow the wall clock, and once that it does again.

How the two are held together is `EngineClock`'s; this only tells operators, in the log and in the probes."""

from __future__ import annotations

import logging

from topics.clock import BELIEVE_MS, JUMP_MS, EngineClock

log = logging.getLogger("topics.clock")


class ClockWatch:
    def __init__(self, clock: EngineClock) -> None:
        self._clock = clock
        self._told = False

    @property
    def sentence(self) -> str | None:
        """What an operator should know as long as it lasts."""
        behind_ms = self._clock.behind_ms()
        if behind_ms < -JUMP_MS:
            return (
                f"the wall clock is {-behind_ms // 1000} s ahead of the time that has passed: "
                f"it is believed once it has stayed there for {BELIEVE_MS // 60_000} minutes"
            )
        if behind_ms > JUMP_MS:
            return (
                f"the wall clock is {behind_ms // 1000} s behind stored times: time goes on from those, a little slower"
            )
        return None

    def look(self) -> None:
        """Called about once per second."""
        sentence = self.sentence
        if sentence is not None and not self._told:
            log.error("%s", sentence)
        elif sentence is None and self._told:
            log.info("stored times agree with the wall clock again")
        self._told = sentence is not None
