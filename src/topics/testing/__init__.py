"""What tests need of the outside world, under their control: simulated time, host and disk.

Shipped with the package so that users can test on it too; never imported by the product.

    disk = SimFs()                                  in memory; loses power as real disks do
    monitor = OrderMonitor()                        raises when an ack, rename or delete comes before its sync
    fs = FaultFs(OrderFs(disk, monitor))            fails where told to
    fs.fail("datasync", "*/wal-*.log")              the next sync of a log file is an EIO
    ...                                             run something on `fs`
    disk.power_cut(Random(7), "reorder")            any subset of the pending writes and names survives
    disk = disk.reboot()                            what the next start finds

`crash_states` gives the disk after a crash at every call of one run.
"""

from topics.testing.clock import SimClock, SimHost
from topics.testing.crashes import CrashPoints, CrashState, crash_states
from topics.testing.faultfs import FOREVER, FaultFs, SimCrash
from topics.testing.order.monitor import OrderMonitor, OrderViolation
from topics.testing.order.order_fs import OrderFs
from topics.testing.powercut import POWER_PATTERNS
from topics.testing.simfs import SimFs

__all__ = [
    "FOREVER",
    "POWER_PATTERNS",
    "CrashPoints",
    "CrashState",
    "FaultFs",
    "OrderFs",
    "OrderMonitor",
    "OrderViolation",
    "SimClock",
    "SimCrash",
    "SimFs",
    "SimHost",
    "crash_states",
]
