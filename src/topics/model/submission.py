"""Submission: all frames of one caller operation, or of a few small ones of one topic; the unit of commit.

Made by the engine's outbox, written by `WalGroup.write`, which fills in where the frames landed. `ops` and `ticket`
are the engine's; storage carries them and never looks inside. It is on every write's path, so it is a plain slots
class: no validation, no comparison.
"""

from __future__ import annotations

from collections.abc import Sequence


class Submission:
    """`frames` are encoded buffers that follow each other, each one or more whole frames; `size` is their sum."""

    __slots__ = (
        "client_frames",
        "durable",
        "end_lsn",
        "file",
        "frame_count",
        "frames",
        "offset",
        "ops",
        "reclaims",
        "size",
        "ticket",
        "topic_id",
        "writes",
    )

    def __init__(
        self,
        frames: list[bytes],
        *,
        frame_count: int,
        client_frames: int = 0,
        durable: bool = False,
        ops: Sequence[object] = (),
        ticket: object = None,
        topic_id: int = 0,
        size: int | None = None,
    ) -> None:
        self.frames = frames
        self.size = sum(map(len, frames)) if size is None else size
        self.frame_count = frame_count
        self.client_frames = client_frames
        self.durable = durable
        self.ops = ops if isinstance(ops, list) else list(ops)
        self.ticket = ticket
        self.topic_id = topic_id
        self.reclaims = False  # it gives space back, so a full disk has to take it; set by `Commit.submit`
        self.writes = 1  # callers who wait for it
        # Filled by the write: index of the file in `WalFiles`, byte offset of the first frame in it, and the group's
        # count of bytes written since it was opened, this submission included.
        self.file = -1
        self.offset = -1
        self.end_lsn = -1
