"""Flipped, zeroed, cut and erased places in every kind of file: nothing wrong is served, nothing is missing in silence.

`make sim` damages at least 5,000 places, `make test` a few of each kind; `DAMAGE_SEED` repeats a failure."""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest
from tests.sim.damaged import KINDS, Base, Listener, damage, draw, judge, read_around

from topics.formats.segments.idx import ENTRY_BYTES, FLAGS_AT, IDX_DELETED

SECONDS = float(os.environ.get("SIM_SECONDS", "0"))
PLACES = 5_000 if SECONDS else 240
SEED = int(os.environ.get("DAMAGE_SEED", "0"))
ENDINGS = ("kill", "stop", "reboot")


@pytest.fixture
def said() -> Iterator[Listener]:
    listener, log = Listener(), logging.getLogger("topics")
    log.addHandler(listener)
    log.propagate = False
    yield listener
    log.removeHandler(listener)
    log.propagate = True


@pytest.mark.timeout(7200 if SECONDS else 300)
def test_a_damaged_place_in_any_file_serves_nothing_wrong_and_hides_nothing(said: Listener) -> None:
    bases = [Base(ending) for ending in ENDINGS]
    kinds = [kind for kind in KINDS if bases[0].files_of(kind)]
    went: Counter[str] = Counter()
    until = time.monotonic() + SECONDS
    number = SEED
    while went.total() < PLACES or time.monotonic() < until:
        base, kind, rng = bases[number % 3], kinds[number // 3 % len(kinds)], Random(number)
        disk = base.disk.clone()
        place = draw(base, kind, rng)
        if damage(disk, place, rng):
            try:
                went[f"{kind}: {judge(base, disk, kind, place, said)}"] += 1
            except BaseException as error:
                error.add_note(f"DAMAGE_SEED={number}: after {base.ending}, {place}; logged: {said.lines}")
                raise
        number += 1
        if number % 100 == 0:
            gc.collect()
    sys.stdout.write(f"\n{went.total()} damaged places: {dict(sorted(went.items()))}\n")
    missing = [kind for kind in kinds if not any(key.startswith(f"{kind}: ") for key in went)]
    assert missing == []


def test_every_kind_of_file_is_among_those_that_are_damaged() -> None:
    base = Base("kill")
    known = {path for kind in KINDS for path in base.files_of(kind)}
    assert {path for path, used in base.files.items() if used} == known
    assert {kind for kind in KINDS if not base.files_of(kind)} <= {"identity"}


def test_a_repair_of_a_cold_segment_from_the_log_keeps_the_records_beside_the_damaged_one(said: Listener) -> None:
    """Other frames of the segment are not in memory; what is written in its place must have them all the same."""
    base = Base("kill")
    for path in base.files_of("cold data"):
        for at in range(30, base.files[path], 40):
            disk = base.disk.clone()
            disk.tamper(path, lambda data, at=at: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])  # type: ignore[misc]
            sim = base.start(disk)
            for name, truth in base.truth.items():
                found = read_around(sim, name)
                assert found.records.keys() | found.corrupt == truth.records.keys(), f"{path} at {at}"
                assert len(found.corrupt) <= 1 or found.blind


def test_a_delete_bit_that_was_spoiled_in_a_cold_index_hides_no_record(said: Listener) -> None:
    base = Base("kill")
    for path in base.files_of("cold idx"):
        for at in range(FLAGS_AT, base.files[path], ENTRY_BYTES):
            disk = base.disk.clone()
            disk.tamper(path, lambda data, at=at: data[:at] + bytes([data[at] | IDX_DELETED]) + data[at + 1 :])  # type: ignore[misc]
            sim = base.start(disk)
            for name, truth in base.truth.items():
                assert read_around(sim, name).records == truth.records, f"{path} at {at}"
