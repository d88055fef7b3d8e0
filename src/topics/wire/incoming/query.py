"""Query strings: `application/x-www-form-urlencoded`, and parameters that never cause an error.

A parameter that cannot be read means its default. Of several equal names the first counts. Called by api, and by `auth`
for `?token=`.
"""

from collections.abc import Mapping
from urllib.parse import unquote_plus

from topics import limits
from topics.errors import InvalidRequest
from topics.model.position import Position, parse_token

Query = Mapping[str, str]

NO_QUERY: Query = {}
_BOOLS = {"true": True, "1": True, "false": False, "0": False}


def parse_query(raw: bytes) -> Query:
    """`raw` is what follows the `?`. Broken `%` sequences stay as they are; broken UTF-8 becomes U+FFFD."""
    if not raw:
        return NO_QUERY
    query: dict[str, str] = {}
    for pair in raw.decode("utf-8", "replace").split("&"):
        name, _, value = pair.partition("=")
        query.setdefault(_plain(name), _plain(value))
    return query


def _plain(text: str) -> str:
    return unquote_plus(text) if "%" in text or "+" in text else text


def bool_param(query: Query, name: str, *, default: bool) -> bool:
    return _BOOLS.get(query.get(name, ""), default)


def int_param(query: Query, name: str, *, clamp: limits.Clamp) -> int:
    """An integer moved into its range; the clamp's default if there is none."""
    return clamp(unsigned(query.get(name)))


def position_param(text: str | None) -> Position:
    """A seq or a position; the start if it is neither. A text that was meant as a position is not taken for another."""
    if text is None or "-" not in text:
        return Position(unsigned(text) or 0)
    try:
        return parse_token(text)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


def unsigned(text: str | None) -> int | None:
    """The value of plain decimal digits, at most 64 bits' worth; None for anything else."""
    if text is None or not (text.isascii() and text.isdigit()):
        return None
    return min(int(text), limits.U64_MAX) if len(text) <= 100 else limits.U64_MAX
