"""ConverterProcess: conversion on another processor, for a log that is written faster than one interpreter can absorb.

Started when a checkpoint has so much to do that it pays, kept until the end. Always holds: whatever the process does
not do, for any reason, is done by the thread that asked, so nothing depends on it; once it has failed it is not used
again. Used by one checkpoint at a time. Chosen by `topics serve` where there is more than one processor.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from mmap import mmap
from typing import Final

from topics.storage.checkpoint import converter_child
from topics.storage.checkpoint.conversion import Converted, FrameSource, InlineConverter
from topics.storage.checkpoint.converter_child import ANSWER, FAILED, REQUEST, SharedRequest, bytes_needed, receive
from topics.storage.wal.wal_files import WalFiles

log = logging.getLogger("topics.checkpoint")

WAIT_S: Final = 60.0
"""For an answer; a slice takes milliseconds, a first one the start of an interpreter."""
MEMORY_BYTES: Final = 1 << 20


class _Child:
    """A running process and the memory shared with it."""

    def __init__(self, wait_s: float) -> None:
        self._memory_file = os.fdopen(os.memfd_create("topics-converter"), "r+b", buffering=0)
        self._door, theirs = socket.socketpair()
        self._door.settimeout(wait_s)
        with theirs:
            self._process = self._start(theirs.fileno())
        self.pid = self._process.pid
        self._memory: mmap | None = None

    def _start(self, door_fd: int) -> subprocess.Popen[bytes]:
        # `close_fds` would look at every connection, and hold up all threads meanwhile; ours close by themselves.
        fds = (door_fd, self._memory_file.fileno())
        for fd in fds:
            os.set_inheritable(fd, True)
        return subprocess.Popen(
            [sys.executable, "-m", converter_child.__name__, *map(str, fds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            close_fds=False,
        )

    def convert(self, path: str, frames: FrameSource, base: int) -> Converted | None:
        """None if it could not; OSError if it has gone or does not answer."""
        memory, count = self._room(bytes_needed(frames.lens)), len(frames.offs)
        desk = SharedRequest(memory, count)
        desk.columns[:] = frames[1:]
        name = os.fsencode(path)
        self._door.sendall(REQUEST.pack(len(memory), count, base, len(name)) + name)
        answer = receive(self._door, ANSWER.size)
        if not answer:
            raise ConnectionResetError("it ended")
        (size,) = ANSWER.unpack(answer)
        return None if size == FAILED else Converted(desk.frames[:size], desk.entries.copy())

    def _room(self, size: int) -> mmap:
        if self._memory is None or len(self._memory) < size:
            size = max(MEMORY_BYTES, 1 << (size - 1).bit_length())
            self._memory_file.truncate(size)
            self._memory = mmap(self._memory_file.fileno(), size)
        return self._memory

    def close(self) -> None:
        self._door.close()
        self._memory_file.close()
        self._process.kill()
        self._process.wait()


class ConverterProcess:
    def __init__(self, files: WalFiles, *, wait_s: float = WAIT_S) -> None:
        self._files = files
        self._own_thread = InlineConverter(files.pread)
        self._wait_s = wait_s
        self._child: _Child | None = None
        self._is_given_up = False

    @property
    def pid(self) -> int | None:
        """None before it was needed, and after it failed."""
        return None if self._child is None else self._child.pid

    def convert(self, frames: FrameSource, *, base: int) -> Converted:
        made = self._elsewhere(frames.source, frames, base) if isinstance(frames.source, int) else None
        return self._own_thread.convert(frames, base=base) if made is None else made

    def _elsewhere(self, file: int, frames: FrameSource, base: int) -> Converted | None:
        if self._is_given_up:
            return None
        try:
            if self._child is None:
                self._child = _Child(self._wait_s)
            return self._child.convert(self._files.get(file).path, frames, base)
        except OSError as error:
            log.warning("checkpoints take the server's own time from here on, their process failed: %s", error)
            self._is_given_up = True
            self.close()
            return None

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()
