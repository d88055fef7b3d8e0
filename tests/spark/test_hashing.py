"""Checksums cut by Arrow are those of the one loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from topics.formats.buffers import hash_slices
from topics.spark.scanning.task_scan import arrow_sums

PIECES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 300)), max_size=40)


@given(PIECES, st.sampled_from([bytes, bytearray, memoryview]))
def test_any_slices_of_any_buffer(pieces: list[tuple[int, int]], kind: type) -> None:
    places, at = [], 0
    for gap, length in pieces:
        places.append((at + gap, at + gap + length))
        at += gap + length
    buffer = kind(bytes(np.random.default_rng(at).integers(0, 256, at, np.uint8)))
    starts, ends = np.array(places, np.int64).reshape(-1, 2).T
    assert arrow_sums(buffer, starts, ends).tolist() == hash_slices(buffer, starts, ends).tolist()


@pytest.mark.parametrize(("count", "length"), [(511, 90), (512, 90), (513, 90), (1025, 7), (3, 70_000)])
def test_runs_end_anywhere_and_long_slices_are_not_copied(count: int, length: int) -> None:
    buffer = np.random.default_rng(count).integers(0, 256, count * length, np.uint8).tobytes()
    starts = np.arange(count, dtype=np.int64) * length
    sums = arrow_sums(buffer, starts, starts + length)
    assert sums.dtype == np.uint64
    assert sums.tolist() == hash_slices(buffer, starts, starts + length).tolist()
