"""How much of a WAL file is in use, and how many frames lie in a part of it that nobody decodes any more.

Reads only. Called by the reader.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import numpy as np

from topics.formats.frame import FRAME_LEN_MIN, LEN_BYTES, OVERHEAD_BYTES
from topics.storage.fs import File, read_full

_ZEROS: Final = bytes(1 << 20)
_ZEROS_KEPT: Final = 64
_STREAK: Final = 16
"""Frames of one length after which more of them are expected."""
_unpack_len: Final = Struct("<I").unpack_from


def read_used(file: File) -> bytes:
    """A file's bytes without the zeros at its end, of which a few are kept: a frame may end in zeros of its checksum.

    In steps, because most of a preallocated file may be zeros and need not be held."""
    parts: list[bytes] = []
    zeros = 0
    for at in range(0, file.size(), len(_ZEROS)):
        part = read_full(file, at, len(_ZEROS))
        if part == _ZEROS[: len(part)]:
            zeros += len(part)
            continue
        parts += [bytes(zeros), part]
        zeros = 0
    parts.append(bytes(min(zeros, _ZEROS_KEPT)))
    return b"".join(parts)


def count_frames(buffer: bytes, end: int) -> tuple[int, bool]:
    """Frames in front of `end` by their length fields alone; exact if those lead to `end` itself.

    They may be damaged, as nothing in front of the recorded position matters any more; then the answer is a bound from
    above. Frames of one length mostly come in stretches, which are counted at once."""
    count, at, before, streak = 0, 0, 0, 0
    stop = min(end, len(buffer) - LEN_BYTES)
    while at < stop:
        (frame_len,) = _unpack_len(buffer, at)
        if frame_len < FRAME_LEN_MIN:
            break
        streak = streak + 1 if frame_len == before else 0
        if streak < _STREAK:
            at += LEN_BYTES + frame_len
            count += 1
        else:
            alike = _alike_from(buffer, at, stop, frame_len)
            at += alike * (LEN_BYTES + frame_len)
            count += alike
            streak = 0
        before = frame_len
    if at == end:
        return count, True
    return end // OVERHEAD_BYTES + 1, False


def _alike_from(buffer: bytes, at: int, stop: int, frame_len: int) -> int:
    """How many frames from `at` on have this length, at least the one there."""
    step, count, looked = LEN_BYTES + frame_len, 1, 64
    most = -(-(stop - at) // step)
    while count < most:
        window = min(looked, most - count)
        lens = np.ndarray((window,), "<u4", buffer, at + count * step, (step,))
        other = np.flatnonzero(lens != frame_len)
        if len(other):
            return count + int(other[0])
        count += window
        looked *= 8
    return count
