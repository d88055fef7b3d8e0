"""Node filter: which records of a run a reader did not write itself (semantics.md section 11).

Byte for byte, no prefixes; a record without a node always passes."""

from __future__ import annotations

import numpy as np

from topics.core.slots import I64
from topics.model.run import BODY_HEAD_BYTES, HAS_NODE, RecordRun

_NODE_LEN_AT = 16


def split_by_node(run: RecordRun, nodes: frozenset[bytes]) -> I64:
    """Indexes of the records whose node is none of `nodes`."""
    buf, flags = run.buf, run.flags
    if not any(flag & HAS_NODE for flag in set(flags)):
        return np.arange(len(run), dtype=np.int64)
    passing = []
    for at, off in enumerate(run.body_offs):
        if flags[at] & HAS_NODE:
            node_len = buf[off + _NODE_LEN_AT] | buf[off + _NODE_LEN_AT + 1] << 8
            node_at = off + BODY_HEAD_BYTES
            if bytes(buf[node_at : node_at + node_len]) in nodes:
                continue
        passing.append(at)
    return np.array(passing, np.int64)
