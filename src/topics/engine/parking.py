"""Parking: names held exclusively by a lifecycle command, and the commands that wait for them.

Creating, reconfiguring or deleting a topic or router holds the names it touches from its decision until it is applied
or failed. Whatever arrives for such a name meanwhile waits in order of arrival, so core never meets a topic that is
half there. Always holds: a name that is not held has no waiters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from topics.engine.ticket import guarded


class Parking:
    def __init__(self) -> None:
        self._held: dict[str, deque[Callable[[], None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def is_held(self, name: str) -> bool:
        return name in self._held

    def first_held(self, names: Iterable[str]) -> str | None:
        return next((name for name in names if name in self._held), None)

    def hold(self, names: Iterable[str]) -> None:
        for name in names:
            assert name not in self._held, "a name was held twice"
            self._held[name] = deque()

    def wait(self, name: str, resume: Callable[[], None]) -> None:
        """Call `resume` when the name is free; it looks again, for someone may have taken the name before it."""
        self._held[name].append(resume)

    def release(self, names: Iterable[str]) -> None:
        """Let go of all names first, then let their waiters have another look, in order of arrival."""
        queues = [(name, self._held.pop(name)) for name in names]
        for name, queue in queues:
            while queue:
                if name in self._held:  # taken again by one of them: the rest keeps its order in front of newcomers
                    self._held[name].extendleft(reversed(queue))
                    break
                guarded(queue.popleft())
