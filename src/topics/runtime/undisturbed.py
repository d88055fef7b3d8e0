"""Undisturbed: a step that no signal handler can break into.

Python runs signal handlers on the main thread, between any two instructions. One that raises, as Ctrl-C does, would
leave the engine half changed; one that uses the database would enter it in the middle of a change. So a step of the
main thread has these signals remembered; their handlers are called when it is over."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # without the enums of `signal`, which cost 6 µs a call
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

SIGNALS: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
"""Those that programs handle with something that may raise."""

Handler = Callable[[int, FrameType | None], object]


def undisturbed(step: Callable[[], T]) -> T:
    """What `step` gives. Signals that came meanwhile are handled behind it, and may raise then."""
    if threading.get_ident() != threading.main_thread().ident:
        return step()
    held: dict[int, Handler] = {}
    came: list[tuple[int, FrameType | None]] = []
    try:
        for number in SIGNALS:
            handler = _signal.getsignal(number)
            if callable(handler):
                held[number] = handler  # first: to put back what was not replaced does no harm
                _signal.signal(number, lambda *signal_and_frame: came.append(signal_and_frame))
        return step()
    finally:
        for number, handler in held.items():
            _signal.signal(number, handler)
        for number, frame in came:
            held[number](number, frame)
