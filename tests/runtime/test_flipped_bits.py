"""One wrong bit anywhere in a log with deletes: what a topic says of itself is what a full read gives, at every start.

The judge is `read_all`: it compares `count`, `earliest_seq` and the floors with the records it was given."""

from __future__ import annotations

from random import Random

import pytest
from tests.crash.harness import Rig, survey

from topics.testing import SimFs
from topics.testing.clock import SimHost

STARTS = 3
FLIPS = 6


def lived(rng: Random) -> SimFs:
    """A log whose records lie in segments in part, and whose deletes are flagged there."""
    disk = SimFs()
    rig = Rig(disk, segment_max_events=rng.choice((4, 100)))
    rig.create("t", rng.choice(("fsync", "disk")), cap_records=rng.choice((0, 5)))
    for _ in range(rng.randrange(5, 12)):
        match rng.randrange(6):
            case 3:
                rig.checkpoint()
            case 4:
                rig.delete("t", match=rng.choice("ab"))
            case 5:
                rig.delete("t", before_seq=rng.randrange(1, 8))
            case _:
                rig.write("t", rng.randrange(1, 4), tag=rng.choice(("a", "b", None)))
    disk.kill()
    return disk


def start_again_and_again(disk: SimFs, boot: str) -> None:
    before = None
    for _ in range(STARTS):
        seen = survey(Rig(disk, host=SimHost(boot)).sim)
        assert before is None or seen == before, "another start shows another state"
        before = seen
        disk.kill()
        disk = disk.reboot()


@pytest.mark.parametrize("seed", range(12))
def test_after_a_flipped_bit_count_and_earliest_seq_are_those_of_a_full_read_at_every_start(seed: int) -> None:
    rng = Random(seed)
    for _ in range(6):
        disk = lived(rng)
        path = max(path for path in disk.dump() if "/wal-" in path)
        used = len(disk.contents(path).rstrip(b"\0"))
        for _ in range(FLIPS):
            at, bit, twin = rng.randrange(used), 1 << rng.randrange(8), disk.clone()
            twin.tamper(path, lambda data, at=at, bit=bit: data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])  # type: ignore[misc]
            start_again_and_again(twin, rng.choice(("boot-1", "boot-2")))


def test_a_flag_whose_delete_and_mark_are_behind_damage_counts_as_deleted() -> None:
    """The mark of the segment is behind the wrong bit, too, so the segment is loaded as one that no mark knows."""
    disk = SimFs()
    rig = Rig(disk)
    rig.create("t", "fsync")
    for tag in "abab":
        rig.write("t", 2, tag=tag)
    log = max(path for path in disk.dump() if "/wal-" in path)
    end = len(disk.contents(log).rstrip(b"\0"))
    rig.checkpoint()
    rig.delete("t", match="b")
    disk.kill()
    disk.tamper(log, lambda data: data[: end + 40] + bytes([data[end + 40] ^ 4]) + data[end + 41 :])
    start_again_and_again(disk.reboot(), "boot-1")
