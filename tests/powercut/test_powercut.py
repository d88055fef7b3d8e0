"""A few power cuts on a real file system; `make powercut` makes hundreds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.loopdev import why_no_loop
from tests.powercut.run import run_disk

CUTS = 3


@pytest.mark.timeout(600)
@pytest.mark.skipif(why_no_loop() != "", reason=why_no_loop() or "there are loop devices")
def test_a_file_system_that_is_shut_down_under_a_busy_server_breaks_no_promise(tmp_path: Path) -> None:
    tally: Counter[str] = Counter()
    oracle = run_disk(tmp_path, "ext4", cuts=CUTS, seed=11, tally=tally)
    assert sum(tally.values()) == CUTS
    assert sum(len(told.acked) for told in oracle.told.values()) > CUTS
