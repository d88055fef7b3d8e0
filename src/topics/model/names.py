"""Names: the grammar of topic and router names, and the type of the fields that carry them.

A name is checked only where something is created; elsewhere an ill-formed name simply does not exist. Used by core
(lifecycle), wire and the embedded library.
"""

import re
from typing import Annotated

import msgspec

from topics.errors import InvalidRequest

NAMES = "names"
TopicName = Annotated[str, msgspec.Meta(extra={NAMES: "topic"})]
"""The type of every field of a request or an answer that names a topic: rights are checked, and answers are cut, by
this type (`topics.wire.names`), so a field that has it needs no further word."""
RouterName = Annotated[str, msgspec.Meta(extra={NAMES: "router"})]

# `fullmatch`, never `match` with `$`: a dollar would let a trailing newline through.
_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}").fullmatch
_ROUTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}").fullmatch


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
