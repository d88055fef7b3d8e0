"""Checksums of many small slices with the help of Arrow, which cuts them in half the time that Python takes.

Executors have Arrow loaded anyway; the server does without it and uses `hash_slices`. Called by scans and by `verify`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import xxhash

from topics.formats.buffers import I64, U64, Buffer, hash_slices

# Slices cut at a time: as bytes they stay in the processor's cache until they are hashed.
_RUN: Final = 512
# Beyond these Arrow's offsets do not reach, or a copy costs more than a view.
_BUFFER_BYTES_MAX: Final = 2**31 - 1
_MEAN_BYTES_MAX: Final = 1024


def arrow_sums(buffer: Buffer, starts: I64, ends: I64) -> U64:
    """XXH3-64 of every `[start, end)` of the buffer, as `hash_slices` has it; slices ascend and do not overlap."""
    count = len(starts)
    if not count or len(buffer) > _BUFFER_BYTES_MAX or int((ends - starts).sum()) > _MEAN_BYTES_MAX * count:
        return hash_slices(buffer, starts, ends)
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[0:-1:2] = starts
    bounds[1::2] = ends
    bounds[-1] = bounds[-2]
    # Every second piece is a slice, the others are what lies between them.
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(buffer)])
    digest = xxhash.xxh3_64_digest
    digests = [
        b"".join(map(digest, pieces.slice(at, 2 * _RUN).to_numpy(zero_copy_only=False)[::2].tolist()))
        for at in range(0, 2 * count, 2 * _RUN)
    ]
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)
