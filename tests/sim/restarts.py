"""Ends and starts of the engine under test, and what may be gone after each.

A crash is the disk's to decide: how many of the newest records it kept is read off the engine, and the rules say how
few that may be."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.core.model import Model, Rec
from tests.crash.harness import settings_of
from tests.sim.checks import Checks
from tests.sim.invariants import agrees, holds

from topics.testing import FaultFs, SimClock, SimFs, SimHost
from topics.testing.driver import SimKernel

SIZES = {"wal_file_bytes": 4096, "segment_max_events": 5, "seq_reserve": 8, "recent_cache_bytes": 600}
REWRITE = {"rewrite_min_dead_bytes": 1, "rewrite_dead_ratio": 0.3}
CLEAN = ("clean", "reboot")


class Restarts(Checks):
    def __init__(self) -> None:
        super().__init__()
        self.disk = SimFs()
        self.clock = SimClock()
        self.host = SimHost()
        self.shards = 1
        self.open()
        self.model = Model(now=self.clock.wall_ms())
        self.crashed = False

    def open(self) -> None:
        given = {**SIZES, **REWRITE, "wal_shards": self.shards}
        self.faults = FaultFs(self.disk, record=False)
        settings = settings_of(tuple(sorted(given.items())))
        self.sim = SimKernel.open(self.faults, clock=self.clock, host=self.host, settings=settings)
        self.sim.kernel.compactor.is_off = True  # a rule does it, so that the model knows when

    def harden(self) -> None:
        """`memory` promises nothing in a power cut, and the floor of a count cap follows the appends behind it: where
        either plays a part, the bytes are synced first, so that the model can know the outcome."""
        if any(t.config.durability == "memory" or t.config.cap_records for t in self.model.topics.values()):
            self.sim.sync_all()

    def crash(self, kind: str, seed: int, shards: int) -> None:
        self.shards = shards
        if kind in CLEAN:
            self.sim.close()
        if kind == "kill":
            self.disk.kill()
            self.disk = self.disk.reboot()
        elif kind != "clean":
            self.disk.power_cut(Random(seed), "lose_all" if kind == "reboot" else kind)
            self.disk = self.disk.reboot()
            if seed % 2:  # else the file system died alone, under a kernel that lives on
                self.host.reboot()
        self.crashed |= kind not in CLEAN
        self.clock.advance(1)
        self.model.now = self.clock.wall_ms()
        self.open()

    def landed(self, name: str, kind: str, late: list[list[Rec]], acked: int) -> None:
        """5, 6: a write under way is there whole or not at all. 37, 38: what was acked is there, or, for `disk` after a
        power cut, the end of it is lost and announced."""
        real, model = self.real(name), self.model.topic(name)
        known, durability = model.head, model.config.durability
        self.model.now -= 1  # they were given their time before the crash
        for records in late:
            self.model.begin_put(name, records)
        self.model.now += 1
        ends = [known, *(batch.records[-1].seq for batch in model.staged)]
        kept = known if durability == "ephemeral" else self.kept_head(name)
        holds(5, kept < known or kept in ends, f"{name}: a write was split at {kept}, writes end at {ends}")
        if durability == "fsync":
            holds(37, kept >= ends[acked], f"{name}: acked records above {kept} are gone")
        elif kind in (*CLEAN, "kill"):
            holds(38, kept >= ends[acked], f"{name}: acked records above {kept} are gone")
        while model.staged and model.staged[0].records[-1].seq <= kept:
            self.model.commit_put(name)
        if durability in ("disk", "memory") and kind in (*CLEAN, "kill"):
            holds(38, real.head == kept, f"{name}: a gap was opened behind {kept}")
        self.model.restart(name, kept_head=kept, head=real.head)
        self.history(name).acked |= set(range(1, kept + 1))
        model.keys = self.surviving_keys(name)
        if durability == "ephemeral":
            floors = real.floors
            model.lost = {"cap": floors.cap_lost, "ttl": floors.ttl_lost, "source_trim": floors.trim_lost,
                          "restart": floors.restart_lost}  # fmt: skip
        self.check_read_back(name, durability)

    def check_read_back(self, name: str, durability: str) -> None:
        """37, 38: what came back is what was written, all of it that the model still has."""
        self.move_floors()
        got = [(seq, data) for seq, _, data in self.follow(name, 50)[0]]
        live = [(rec.seq, rec.data) for rec in self.model.topic(name).live]
        if durability == "fsync":
            holds(37, got == live, name)
        elif durability == "disk":
            holds(38, got == live, name)

    def kept_head(self, name: str) -> int:
        """The newest record that came back: the lost range at the head, if this start opened one, begins behind it."""
        real, model = self.real(name), self.model.topic(name)
        known = {lost.lo: lost.hi for lost in model.lost_ranges}
        last = list(real.lost)[-1:]
        if last and last[0].hi == real.head and known.get(last[0].lo) != last[0].hi:
            return int(known.get(last[0].lo, last[0].lo - 1))  # an older range may have been prolonged
        if not last and real.head > model.lost["restart"] and real.floors.restart_lost == real.head:
            return min((rec.seq for rec in model.live), default=model.head + 1) - 1  # the floor took the range in
        return int(real.head)

    def surviving_keys(self, name: str) -> dict[str, Any]:
        """Keys may be forgotten by a crash; those that are remembered are right."""
        known, kept = self.model.topic(name).keys, {}
        window = self.model.topic(name).config.idempotency_window_ms
        for key, memo in self.real(name).idem.items():
            if key.decode() in known and self.model.now - memo.ts <= window:
                put = known[key.decode()][1]
                agrees((memo.first_seq, memo.count), (put.first_seq, put.count), name)
                kept[key.decode()] = known[key.decode()]
        return kept
