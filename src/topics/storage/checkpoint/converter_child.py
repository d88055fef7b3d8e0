"""The process behind `ConverterProcess`: reads requests from a socket, WAL files by path, and answers in shared memory.

Of every request:   columns `offs`, `lens`, `seqs` | entries | frames
                    8 bytes each a record          | 20      | at most the sum of `lens`

The asker writes the columns and sends `REQUEST` and the path; the answer is the number of bytes of the frames, or
`FAILED`: then the asker does it itself, and finds what is wrong. Ends when the socket does, as when its server was
killed; signals that are meant for the server's terminal or group do not end it.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import sys
from mmap import mmap
from typing import Final

import numpy as np

from topics.formats.buffers import I64
from topics.formats.segments.idx import ENTRY_BYTES, IDX_DTYPE, Idx
from topics.storage.checkpoint.conversion import convert_file

REQUEST: Final = struct.Struct("<QQQH")
"""Bytes of the shared memory, records, `base`, bytes of the path."""
ANSWER: Final = struct.Struct("<q")
FAILED: Final = -1
NICE: Final = 5
"""Whoever writes and reads comes first; a quarter of a busy processor is enough to keep up."""
_COLUMNS: Final = 3
_ROW_BYTES: Final = 8 * _COLUMNS + ENTRY_BYTES


def bytes_needed(lens: I64) -> int:
    """Of shared memory for frames of these lengths: segment frames are shorter than those of the log."""
    return len(lens) * _ROW_BYTES + int(lens.sum())


class SharedRequest:
    """The shared memory, laid out for one request."""

    def __init__(self, memory: mmap, count: int) -> None:
        self.columns: I64 = np.frombuffer(memory, np.int64, _COLUMNS * count).reshape(_COLUMNS, count)
        self.entries: Idx = np.frombuffer(memory, IDX_DTYPE, count, offset=8 * _COLUMNS * count)
        self.frames = memoryview(memory)[count * _ROW_BYTES :]


def receive(door: socket.socket, size: int) -> bytes:
    """So many bytes; none if the other side has gone."""
    got = b""
    while len(got) < size:
        more = door.recv(size - len(got))
        if not more:
            return b""
        got += more
    return got


def serve(door: socket.socket, memory_fd: int) -> None:
    memory: mmap | None = None
    while head := receive(door, REQUEST.size):
        size, count, base, path_bytes = REQUEST.unpack(head)
        path = os.fsdecode(receive(door, path_bytes))
        if memory is None or len(memory) != size:
            memory = mmap(memory_fd, size)
        door.sendall(ANSWER.pack(_answer(SharedRequest(memory, count), path, base)))


def _answer(desk: SharedRequest, path: str, base: int) -> int:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            made = convert_file(lambda off, n: os.pread(file, n, off), *desk.columns, base=base)
        finally:
            os.close(file)
    except Exception:
        return FAILED
    desk.entries[:] = made.idx
    desk.frames[: len(made.buffer)] = made.buffer
    return len(made.buffer)


if __name__ == "__main__":
    os.nice(NICE)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
