"""Crashing: every crash that one story of queues or routers could have had, each distinct one once.

A story runs on a simulated disk whose every changing call is a crash point. At each point the process is killed, or the
power is cut with what was not synced kept, lost, torn at a byte or reordered. Two crashes that leave the same files
after the same answers are one."""

from __future__ import annotations

import gc
import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from tests.engine.world import World

from topics.storage.fs import Fs
from topics.testing import SimClock, SimFs, SimHost, crash_states
from topics.testing.crashes import CrashState

TREATMENTS = ("keep_all", "lose_all", "keep_prefix_torn", "reorder")
SMALL: dict[str, Any] = {"wal_file_bytes": 8192, "segment_max_events": 4, "seq_reserve": 8}
SECOND_START_EVERY = 3  # what a second start does depends on the first far more than on the disk before it
COLLECT_EVERY = 250  # an engine is full of cycles; collecting after each one costs more than the engine


def distinct_crashes(run: Callable[[Fs], object], *, note: Callable[[], object]) -> Iterator[CrashState]:
    """`note` is called at each point and says what had been told by then; it must return a copy."""
    met: set[bytes] = set()
    with _quiet():
        for state in crash_states(SimFs(), run, rng=Random(5), patterns=TREATMENTS, note=note):
            known = _fingerprint(state)
            if known not in met:
                met.add(known)
                if len(met) % COLLECT_EVERY == 0:
                    gc.collect()
                yield state


def starts(state: CrashState, number: int, clock: SimClock, **settings: Any) -> Iterator[World]:
    """The engine after the crash; for some crashes another one after that was killed as soon as it was up."""
    host = SimHost() if state.how == "kill" else SimHost("boot-after")
    world = World(state.disk, clock=clock, host=host, **{**SMALL, **settings})
    again = [world.killed()] if number % SECOND_START_EVERY == 0 else []
    yield from (world, *again)


def _fingerprint(state: CrashState) -> bytes:
    """Of what a start can see, and of what it is judged by."""
    digest = hashlib.blake2b(repr((state.how == "kill", state.note)).encode(), digest_size=16)
    for path, data in state.disk.dump().items():
        digest.update(f"{path}:{len(data)}:".encode())
        digest.update(data.rstrip(b"\0"))
    return digest.digest()


@contextmanager
def _quiet() -> Iterator[None]:
    """The engine warns of every loss it announces, and here that is thousands of lines nobody reads."""
    logging.disable(logging.ERROR)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)
