"""What tests need of the outside world, under their control: simulated time, host and disk.

Shipped with the package so that users can test on it too; never imported by the product.

    disk = SimFs()                                  in memory; loses power as real disks do
    disk.power_cut(Random(7), "reorder")            any subset of the pending writes and names survives
    disk = disk.reboot()                            what the next start finds

"""

from topics.testing.clock import SimClock, SimHost
from topics.testing.powercut import POWER_PATTERNS
from topics.testing.simfs import SimFs

__all__ = ["POWER_PATTERNS", "SimClock", "SimFs", "SimHost"]
