"""Position: a cursor and the life of the topic it belongs to, as one printable token (`docs/spec/semantics.md#sec-5`).

    12-e1a2b3c4d5e6f7       the seq, and the epoch in hex; nothing in it has to be escaped anywhere

Whoever hands out a cursor hands out a token; whoever takes a cursor takes a token or a bare seq. A bare seq has no
epoch: what comes of that is in docs/loss.md. Used by every door."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from topics import limits
from topics.errors import InvalidRequest

TOKEN_PATTERN: Final = "^(0|[1-9][0-9]{0,19})-e(0|[1-9a-f][0-9a-f]{0,15})$"
_TOKEN = re.compile(TOKEN_PATTERN).fullmatch


class Position(NamedTuple):
    """Behind the record `seq`; 0 is the start. `epoch` is None for a bare seq."""

    seq: int
    epoch: int | None = None

    def __str__(self) -> str:
        return str(self.seq) if self.epoch is None else token(self.seq, self.epoch)

    @property
    def given(self) -> int | str:
        """As it goes into a request."""
        return self.seq if self.epoch is None else token(self.seq, self.epoch)


START = Position(0)


def token(seq: int, epoch: int) -> str:
    return f"{seq}-e{epoch:x}"


def is_token(text: str) -> bool:
    try:
        parse_token(text)
    except ValueError:
        return False
    return True


def parse_token(text: str) -> Position:
    """Raises ValueError, with a sentence, for everything that is no token."""
    found = _TOKEN(text)
    if found is None or int(found[1]) > limits.U64_MAX:
        shown = ascii(text if len(text) <= 64 else text[:64] + "...")
        raise ValueError(f"{shown} is not a position; one looks like 12-e1a2b3c4d5e6f7")
    return Position(int(found[1]), int(found[2], 16))


def position_of(given: int | str) -> Position:
    """Of a request's `from_seq`; raises ValueError. The range of a number was checked."""
    return parse_token(given) if isinstance(given, str) else Position(given)


def checked_position(after: object) -> Position:
    """Of what a caller in Python gives: a seq, a token, or something that has a `position`, such as a record."""
    found = getattr(after, "position", after)
    if isinstance(found, Position):
        return found
    if isinstance(found, str):
        try:
            return parse_token(found)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= limits.U64_MAX:
        raise InvalidRequest(f"after is a position, a record, a seq, or 0 for the start, not {after!r}")
    return Position(found)
