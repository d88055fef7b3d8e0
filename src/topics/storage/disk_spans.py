"""Spans: frames scattered over a file, read with as few calls as is sensible.

Frames of one topic lie side by side when it is written alone and far apart when it shares its log with others. Places
closer than `GAP_BYTES_MAX` are read together with what is between them. Used by checkpoints and by reads of the tail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from topics.errors import StorageIo
from topics.formats.buffers import I64

GAP_BYTES_MAX: Final = 4096
"""A page read for nothing costs less than a system call."""


class GatheredFrames(NamedTuple):
    """Frames in one buffer, and where each of them now starts."""

    buffer: bytes
    offs: I64


def read_spans(read: Callable[[int, int], bytes], offs: I64, lens: I64) -> GatheredFrames:
    """`read(offset, length)` the frames at ascending `offs`; a short read is a StorageIo."""
    if not len(offs):
        return GatheredFrames(b"", offs)
    ends = offs + lens
    breaks = np.flatnonzero(offs[1:] - ends[:-1] > GAP_BYTES_MAX) + 1
    if not len(breaks):
        low = int(offs[0])
        return GatheredFrames(_read_exactly(read, low, int(ends[-1]) - low), offs - low)
    firsts = np.concatenate(([0], breaks))
    lows, highs = offs[firsts], ends[np.concatenate((breaks, [len(offs)])) - 1]
    parts = [_read_exactly(read, a, b - a) for a, b in zip(lows.tolist(), highs.tolist(), strict=True)]
    starts = np.cumsum(highs - lows) - (highs - lows)
    cluster = np.repeat(np.arange(len(firsts)), np.diff(np.concatenate((firsts, [len(offs)]))))
    return GatheredFrames(b"".join(parts), offs - lows[cluster] + starts[cluster])


def _read_exactly(read: Callable[[int, int], bytes], offset: int, length: int) -> bytes:
    found = read(offset, length)
    if len(found) != length:
        raise StorageIo(f"{length} bytes wanted at {offset}, {len(found)} there")
    return found
