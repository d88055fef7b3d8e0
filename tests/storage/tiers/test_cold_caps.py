"""A count cap over cold segments whose indexes are not loaded: after a start they are not."""

from __future__ import annotations

from pathlib import Path

from tests.spark.world import World, read_path, rows_in


def test_a_start_takes_no_more_than_the_cap_asks_for(tmp_path: Path) -> None:
    """A logged floor lies inside a cold segment, so its share is counted out when the index comes. Until then the count
    is too high, and must not be what the next append trims by."""
    world = World(tmp_path, cold_dir=str(tmp_path / "cold"), hot_retain_segments=1, segment_max_events=10)
    world.put("a", cap_records=25)
    for written in (45, 5, 15):
        world.write("a", *range(written))
        world.sim.checkpoint()
        world.clock.advance(2_000)
        world.sim.tick()  # moves what may go to the cold store
        if written == 45:
            world.sim.snapshot()
    expected = world.rows("a")
    assert [row.seq for row in expected] == list(range(41, 66))
    assert rows_in(read_path(world, "a")) == expected
    world.kill()
    world.start()
    assert world.rows("a") == expected
