"""JavaStderr: what Java writes to stderr while it starts is kept back; what comes later is passed on.

A session that does not start comes back as an exception, and what Java has to say about it is pages of its own calls.
Later only our own code speaks there: planners and tasks that warn of lost records. Java keeps the stderr that it is
started with, so it gets a pipe, and a thread of ours reads it as long as we live."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

LINES_MAX: Final = 1000
PATIENCE_S: Final = 2.0
_STDERR: Final = 2


class JavaStderr:
    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=LINES_MAX)
        self._is_up = threading.Event()
        self._reader = threading.Thread(target=self._read, name="topics-java-stderr", daemon=True)
        self._source = -1

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Java that is started meanwhile writes into our pipe, and is heard when this ends well."""
        self._source, target = os.pipe()
        kept = os.dup(_STDERR)
        os.dup2(target, _STDERR)
        os.close(target)
        self._reader.start()
        try:
            yield
        finally:
            os.dup2(kept, _STDERR)
            os.close(kept)
        self._is_up.set()

    def said(self) -> str:
        """What was kept back. Java that did not come up is gone in a moment, and has said everything then."""
        self._reader.join(PATIENCE_S)
        return b"".join(self._lines).decode(errors="replace")

    def _read(self) -> None:
        with open(self._source, "rb") as lines:
            for line in lines:
                if self._is_up.is_set():
                    os.write(_STDERR, line)
                else:
                    self._lines.append(line)
