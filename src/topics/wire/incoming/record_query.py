"""A read in the query of its URL (`docs/spec/readers.md#sec-5`), for browsers and for curl.

Unlike other queries this one is strict: a parameter that is misspelt or cannot be read is refused by its name, because
its default would read the whole topic."""

from __future__ import annotations

from typing import Any, TypeVar

from topics import limits
from topics.errors import InvalidRequest
from topics.model.position import is_token
from topics.wire.incoming.request_head import Query
from topics.wire.incoming.requests import DiffRequest, checked

R = TypeVar("R", bound=DiffRequest)

CURSOR = "cursor:"
_BOOLS = {"true": True, "1": True, "false": False, "0": False}


def diff_query(query: Query, kind: type[R]) -> R:
    """The read that a query asks for. Raises InvalidRequest."""
    fields: dict[str, Any] = {}
    for name, text in query.items():
        if name == "from":
            fields |= _start(text)
        elif name in ("limit", "wait_ms"):
            fields[name] = _number(name, text, limits.U32_MAX)
        elif name == "include_tags":
            if text not in _BOOLS:
                raise InvalidRequest(f"{name} must be true or false, not {text!r}")
            fields[name] = _BOOLS[text]
        elif name in ("tag", "node"):
            if not text:
                raise InvalidRequest(f"{name} must not be empty")
            fields[name] = text
        else:
            known = "from, limit, tag, node, include_tags and wait_ms are"
            raise InvalidRequest(f"{name[:64]!r} is no parameter of a read; {known}")
    return checked(kind, **fields)


def _start(text: str) -> dict[str, Any]:
    if text.startswith("@"):
        return {"from_ts": _number("from", text[1:], limits.U64_MAX)}
    if text.startswith(CURSOR) and len(text) > len(CURSOR):
        return {"cursor": text.removeprefix(CURSOR)}
    return {"from_seq": text if is_token(text) else _number("from", text, limits.U64_MAX)}


def _number(name: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 20 or int(text) > most:
        forms = "a seq, a position, @ and milliseconds, or cursor:name" if name == "from" else f"a number up to {most}"
        raise InvalidRequest(f"{name} must be {forms}, not {text[:64]!r}")
    return int(text)
