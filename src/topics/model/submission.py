"""Submission: all frames of one caller operation, or of a few small ones of one topic; the unit of commit. One that has
ops of a second topic of the group (a job that ends and its record in the history) names it as `rider_topic_id`.

Made by the engine's outbox, written by `WalGroup.write`, which fills in where the frames landed. `ops` and `ticket`
are the engine's; storage carries them and never looks inside. It is on every write's path, so it is a struct: made
without a call of Python code.
"""

from __future__ import annotations

import msgspec


class Submission(msgspec.Struct, eq=False):
    """`frames` are encoded buffers that follow each other, each one or more whole frames; `size` is their sum."""

    frames: list[bytes]
    size: int
    frame_count: int
    client_frames: int = 0
    durable: bool = False
    ops: list[object] = msgspec.field(default_factory=list)
    ticket: object = None
    topic_id: int = 0
    rider_topic_id: int = 0
    reclaims: bool = False
    """It gives space back, so a full disk has to take it; set by `Commit.submit`."""
    writes: int = 1
    """Callers who wait for it."""
    file: int = -1
    """From here on filled by the write: index of the file in `WalFiles`, byte offset of the first frame in it, and the
    group's count of bytes written since it was opened, this submission included."""
    offset: int = -1
    end_lsn: int = -1
