"""Looking up Append frames that are still in the log: the first source for repairing a damaged segment.

Reads whole files, so it is slow, and meant for the rare case that a stored frame turned out damaged. Every frame it
gives was checked. Called by `segments.repair`, from recovery and from pool threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topics.formats.buffers import byte_view
from topics.formats.wal import scan_wal
from topics.formats.wal.frame import FrameType
from topics.storage.fs import read_full
from topics.storage.wal.wal_files import WalFile, WalFiles


def find_in_wal(files: WalFiles, topic_id: int, seqs: Sequence[int]) -> dict[int, bytes]:
    """The Append frames of these seqs, by seq, as far as the log still has them."""
    wanted = set(seqs)
    found: dict[int, bytes] = {}
    for key in files.group_keys():
        for file in files.of_group(key):
            if wanted - found.keys():
                found |= _find_in_file(file, topic_id, wanted)
    return found


def _find_in_file(file: WalFile, topic_id: int, wanted: set[int]) -> dict[int, bytes]:
    with file.held() as handle:
        buffer = read_full(handle, 0, handle.size())
    columns = scan_wal(buffer)
    mine = (columns.type == FrameType.APPEND) & (columns.topic_id == topic_id)
    view = byte_view(buffer)
    frames: dict[int, bytes] = {}
    for row in np.flatnonzero(mine).tolist():
        seq = int(columns.seq[row])
        if seq in wanted:
            at = int(columns.offset[row])
            frames[seq] = bytes(view[at : at + int(columns.length[row])])
    return frames
