"""Commands: the table of the functions that carry out the routes of a verb, one for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from topics.client.routes import (
    Route,
)

if TYPE_CHECKING:
    from topics.embedded.database import Database

Q = TypeVar("Q")
T = TypeVar("T")
P = ParamSpec("P")


COMMANDS: dict[Route[Any, Any], Callable[..., Any]] = {}


def carries_out(
    route: Route[Q, T],
) -> Callable[[Callable[Concatenate[Database, str, Q, P], T]], Callable[Concatenate[Database, str, Q, P], T]]:
    """Registers the command of a route. It takes the name of a part, such as a cursor, behind the request."""

    def register(
        command: Callable[Concatenate[Database, str, Q, P], T],
    ) -> Callable[Concatenate[Database, str, Q, P], T]:
        COMMANDS[route] = command
        return command

    return register
