"""Names: the grammar of topic and router names, and the type of the fields that carry them.

A name is checked only where something is created; elsewhere an ill-formed name simply does not exist. Used by core
(lifecycle), wire and the embedded library."""

import re
from typing import Annotated, Literal

import msgspec

from topics.errors import InvalidRequest
from topics.limits import NAME_BYTES_MAX

NAMES = "names"
TopicName = Annotated[str, msgspec.Meta(extra={NAMES: "topic"})]
"""The type of every field of a request or an answer that names a topic: rights are checked, and answers are cut, by
this type (`topics.wire.access.visible_names`), so a field that has it needs no further word."""
RouterName = Annotated[str, msgspec.Meta(extra={NAMES: "router"})]
ScheduleName = Annotated[str, msgspec.Meta(extra={NAMES: "schedule"})]

# `fullmatch`, never `match` with `$`: a dollar would let a trailing newline through.
_TOPIC = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:-]{{0,{NAME_BYTES_MAX - 1}}}").fullmatch
_ROUTER = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:>-]{{0,{NAME_BYTES_MAX - 1}}}").fullmatch


def is_topic_name(name: str) -> bool:
    return _TOPIC(name) is not None


def is_router_name(name: str) -> bool:
    return _ROUTER(name) is not None


def check_topic_name(name: str) -> None:
    if not isinstance(name, str) or _TOPIC(name) is None:
        raise InvalidRequest(f"{_shown(name)} is not a topic name")


def check_router_name(name: str) -> None:
    if not isinstance(name, str) or _ROUTER(name) is None:
        raise InvalidRequest(f"{_shown(name)} is not a router name")


def _shown(name: object) -> str:
    if not isinstance(name, str):
        return ascii(name)
    return ascii(name if len(name) <= 64 else name[:64] + "...")


MatchOp = Literal["Eq", "Glob"]


class TagMatch(msgspec.Struct, frozen=True, array_like=True):
    """The one predicate of the contract, used by record deletes and router filters.

    `value` of a Glob is the literal prefix, without the final `*`; that is also what is stored, as `[op, value]`. An
    untagged record never matches. Built from JSON by `parse_match`."""

    op: MatchOp
    value: str

    def matches(self, tag: bytes | None) -> bool:
        if tag is None:
            return False
        wanted = self.value.encode()
        return tag == wanted if self.op == "Eq" else tag.startswith(wanted)

    def to_json(self) -> list[str]:
        """The tuple form that responses echo: `["tag","Glob","pub:*"]`."""
        return ["tag", self.op, self.value if self.op == "Eq" else self.value + "*"]


def parse_match(given: object) -> TagMatch:
    """A predicate as it came in JSON: a bare string, or `["tag", op, value]`."""
    if isinstance(given, str):
        return TagMatch("Glob", given[:-1]) if given.endswith("*") else TagMatch("Eq", given)
    match given:
        case ["tag", "Eq", str(value)]:
            return TagMatch("Eq", value)
        case ["tag", "Glob", str(value)] if value.endswith("*"):
            return TagMatch("Glob", value[:-1])
    raise InvalidRequest('a tag match is "x", "x*", ["tag","Eq","x"] or ["tag","Glob","x*"]')
