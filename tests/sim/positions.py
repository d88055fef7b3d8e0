"""Readers that store where they are and come back: after anything, to a topic that is the same one or another.

What the model has to know for it is which life of a name a position was taken in; it counts them itself."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.sim.invariants import holds
from tests.sim.restarts import Restarts

from topics.core.reading.walk import ReadRequest
from topics.model.position import parse_token, token

STORED_MAX = 16


class Stored(NamedTuple):
    name: str
    life: int
    position: str


class Positions(Restarts):
    def __init__(self) -> None:
        super().__init__()
        self.lives: Counter[str] = Counter()
        self.stored: list[Stored] = []

    def begin_life(self, name: str) -> None:
        """The model made a topic of this name, be it once more."""
        self.lives[name] += 1

    @rule(name=st.sampled_from(["t", "u", "u"]), place=st.integers(0, 100))
    def store_position(self, name: str, place: int) -> None:
        self.move_floors()
        from_seq = round(place / 100 * self.model.topic(name).head)
        request = ReadRequest(from_seq=from_seq, limit=3)
        outcome = self.sim.call(lambda engine: engine.read(name, request)).outcome
        position = token(outcome.next_from_seq, outcome.epoch)
        self.stored = [*self.stored, Stored(name, self.lives[name], position)][-STORED_MAX:]

    @rule(pick=st.integers(0, STORED_MAX - 1))
    def come_back(self, pick: int) -> None:
        """22: another life is announced, whatever its length, and the same one never is."""
        if not self.stored:
            return
        self.move_floors()
        name, life, position = self.stored[pick % len(self.stored)]
        start = parse_token(position)
        told = self.page(name, ReadRequest(from_seq=start.seq, epoch=start.epoch, limit=1000))
        reasons = [reason for _, _, reason in told.gaps]
        if life == self.lives[name]:
            holds(22, "recreated" not in reasons, (position, told))
        else:
            holds(22, reasons == ["recreated"], (position, told))
            holds(22, [row.seq for row in told.rows] == [rec.seq for rec in self.model.topic(name).live], told)

    @rule(is_clean=st.booleans())
    def become_a_copy(self, is_clean: bool) -> None:
        """The directory is found to be a copy of itself: epochs change, and no reader is told anything."""
        before = {name: self.real(name).epoch for name in self.model.topics}
        if is_clean:
            self.sim.close()
        else:
            self.sim.sync_all()
            self.disk.kill()
            self.disk = self.disk.reboot()
        self.disk.unlink("data/identity")
        self.disk.sync_dir("data")
        self.clock.advance(1)
        self.model.now = self.clock.wall_ms()
        self.crashed |= not is_clean
        self.open()
        for name, epoch in before.items():
            holds(22, self.real(name).epoch > epoch, (name, epoch))
            self.landed(name, "clean" if is_clean else "kill", [], 0)
