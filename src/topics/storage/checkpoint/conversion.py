"""Conversion: frames of the log made into segment frames, wherever that is done.

It is the part of a checkpoint that computes: every record is hashed twice, from Python. A `Converter` does it for one
slice at a time: `InlineConverter` here, `ConverterProcess` on another processor. Always holds: frames of a file are
verified before they get a fresh checksum, and a place that holds another record than it should is a Corruption, never
that record's new place. Called by checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from topics.errors import Corruption
from topics.formats.buffers import I64, byte_view, gather_u64
from topics.formats.segments.frame import segment_frames_from_wal
from topics.formats.segments.idx import Idx
from topics.model.run import WAL_BODY_AT
from topics.storage.disk_spans import read_spans
from topics.storage.fs import Buffer
from topics.storage.wal.wal_files import ReadWal


class FrameSource(NamedTuple):
    """WAL frames of ascending seqs: where they lie in a WAL file, given by its index, or in memory."""

    source: int | Buffer
    offs: I64
    lens: I64
    seqs: I64


class Converted(NamedTuple):
    """Segment frames back to back, good until the next call, and their entries."""

    buffer: Buffer
    idx: Idx


class Converter(Protocol):
    def convert(self, frames: FrameSource, *, base: int) -> Converted:
        """To be written at offset `base` of `.data`."""


class InlineConverter:
    """Converts where it is called."""

    def __init__(self, read_wal: ReadWal) -> None:
        self._read_wal = read_wal

    def convert(self, frames: FrameSource, *, base: int) -> Converted:
        source = frames.source
        if isinstance(source, int):
            return convert_file(lambda off, n: self._read_wal(source, off, n), *frames[1:], base=base)
        return _convert(source, frames.offs, frames.lens, frames.seqs, base=base, verify=False)


def convert_file(read: Callable[[int, int], bytes], offs: I64, lens: I64, seqs: I64, *, base: int) -> Converted:
    """Of one WAL file, `read(offset, length)`."""
    gathered = read_spans(read, offs, lens)
    return _convert(gathered.buffer, gathered.offs, lens, seqs, base=base, verify=True)


def _convert(buffer: Buffer, offs: I64, lens: I64, seqs: I64, *, base: int, verify: bool) -> Converted:
    found = gather_u64(byte_view(buffer), offs + WAL_BODY_AT)
    wrong = np.flatnonzero(found != seqs.astype(np.uint64))
    if len(wrong):
        raise Corruption(file="wal", offset=int(offs[wrong[0]]), reason="seq")
    return Converted(*segment_frames_from_wal(buffer, offs, lens, base=base, verify=verify))
