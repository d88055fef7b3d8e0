"""A whole engine on a disk whose calls fail where a test says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.crash.harness import Rig, survey
from tests.crash.ledger import Seen, check

from topics.testing import FaultFs, SimClock, SimFs, SimHost

WAL = "*/wal-*.log"


class World:
    """A rig with its faults, and the ways it can end. `seen` after an end is checked against what was promised."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.clock = SimClock()
        self.host = SimHost()
        self.disk = SimFs()
        self.faults = FaultFs(self.disk, record=False)
        self.before_start: Callable[[FaultFs], object] = lambda _: None
        self.rig = Rig(self.faults, clock=self.clock, host=self.host, **settings)

    def seen(self) -> dict[str, Seen]:
        return survey(self.rig.sim)

    def kill(self, **settings: Any) -> dict[str, Seen]:
        self.disk.kill()
        return self._start(power_cut=False, **settings)

    def cut(self, pattern: Any = "lose_all", **settings: Any) -> dict[str, Seen]:
        self.disk.power_cut(None, pattern)
        return self.restart_after_cut(**settings)

    def lose_file_system(self, pattern: Any = "lose_all", **settings: Any) -> dict[str, Seen]:
        """The volume goes and is mounted again; the kernel lives on."""
        self.disk.power_cut(None, pattern)
        return self._start(power_cut=True, **settings)

    def restart_after_cut(self, **settings: Any) -> dict[str, Seen]:
        """The machine is started again."""
        self.host.reboot()
        return self._start(power_cut=True, **settings)

    def stop(self, **settings: Any) -> dict[str, Seen]:
        self.rig.sim.close()
        self.disk.kill()
        return self._start(power_cut=False, **settings)

    def _start(self, *, power_cut: bool, **settings: Any) -> dict[str, Seen]:
        self.settings |= settings
        self.disk = self.disk.reboot()
        self.faults = FaultFs(self.disk, record=False)
        self.before_start(self.faults)
        self.rig = Rig(self.faults, self.rig.ledger, clock=self.clock, host=self.host, **self.settings)
        seen = self.seen()
        check(self.rig.ledger, seen, power_cut=power_cut)
        for name, found in seen.items():
            instance = self.rig.ledger.instance(name)
            instance.gone |= {seq for seq in instance.acked() if found.announced(seq)}
        return seen
