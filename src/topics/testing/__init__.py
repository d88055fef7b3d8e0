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

clock     SimClock, SimHost                                    faultfs        FaultFs: calls that fail where told to
simfs     SimFs: an in-memory file system                      order_fs       OrderFs: tells the monitor of every call
simdisk   the disk under it: nodes, pending changes, copies    order_monitor  OrderMonitor: what must be durable first
powercut  which pending changes survive a power cut            crashes        crash_states: every crash of one run
driver    SimKernel: the kernel on one thread, virtual time

Never touches a real file, clock or thread.
"""

from topics.testing.clock import SimClock, SimHost
from topics.testing.crashes import CrashPoints, CrashState, crash_states
from topics.testing.faultfs import FOREVER, FaultFs, SimCrash
from topics.testing.order_fs import OrderFs
from topics.testing.order_monitor import OrderMonitor, OrderViolation
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
