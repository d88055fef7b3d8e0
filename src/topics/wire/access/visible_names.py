"""Names in requests and answers, found by their type and not by a list of fields.

A struct's field that names a topic has the type `TopicName`, one that names a router `RouterName`. From that alone
follows what a key's prefixes are checked against (`names_in`) and what an answer must leave out (`cut`), at any depth:
in structs, lists, optional fields, and as keys of an object. A new field needs nothing but its type. Called by api for
keys that are bound to prefixes, and for no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from topics.errors import CorruptSegment, Internal, RouterCycle, TopicExistsIncompatible, TopicsError
from topics.model.names import NAMES

Permits = Callable[[str], bool]


def names_in(value: msgspec.Struct) -> Iterator[str]:
    """All names of topics and routers that a decoded request carries."""
    for field, kind in _fields(type(value)):
        yield from _names_of(kind, getattr(value, field))


def cut(value: Any, permits: Permits) -> tuple[Any, list[str]]:
    """An answer without the names that are not permitted, and the paths of the fields where some were left out.

    A name that cannot be left out must not be answered at all: that is a fault of ours, and the answer is a 500."""
    hidden: list[str] = []
    return _cut_struct(value, permits, "", hidden), hidden


# --- by type ---------------------------------------------------------------------------------------------------------


@cache
def _fields(struct: type) -> tuple[tuple[str, inspect.Type], ...]:
    """The fields in which a name may stand."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType), struct
    return tuple((field.name, field.type) for field in info.fields if _may_name(field.type))


def _may_name(kind: inspect.Type) -> bool:
    match kind:
        case inspect.Metadata(extra=extra, type=inner):
            return (extra is not None and NAMES in extra) or _may_name(inner)
        case inspect.UnionType(types=types):
            return any(map(_may_name, types))
        case inspect.CollectionType(item_type=item):
            return _may_name(item)
        case inspect.DictType(key_type=key, value_type=item):
            return _may_name(key) or _may_name(item)
        case inspect.StructType(cls=struct):
            return bool(_fields(struct))
    return False


def _is_name(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.Metadata) and kind.extra is not None and NAMES in kind.extra


def _plain_type(kind: inspect.Type) -> inspect.Type:
    """Without None and without remarks that name nothing."""
    while not _is_name(kind):
        if isinstance(kind, inspect.Metadata):
            kind = kind.type
        elif isinstance(kind, inspect.UnionType):
            (kind,) = [choice for choice in kind.types if _may_name(choice)]
        else:
            break
    return kind


def _names_of(kind: inspect.Type, value: Any) -> Iterator[str]:
    if value is None or value is msgspec.UNSET:
        return
    kind = _plain_type(kind)
    if _is_name(kind):
        yield value
    elif isinstance(kind, inspect.StructType):
        yield from names_in(value)
    elif isinstance(kind, inspect.DictType):
        for key, item in value.items():
            yield from _names_of(kind.key_type, key) if _may_name(kind.key_type) else ()
            yield from _names_of(kind.value_type, item) if _may_name(kind.value_type) else ()
    else:
        assert isinstance(kind, inspect.CollectionType), kind
        for item in value:
            yield from _names_of(kind.item_type, item)


# --- cutting ---------------------------------------------------------------------------------------------------------


def _cut_struct(value: msgspec.Struct, permits: Permits, path: str, hidden: list[str]) -> Any:
    changed = {}
    for field, kind in _fields(type(value)):
        before = getattr(value, field)
        after = _cut(kind, before, permits, f"{path}{field}", hidden)
        if after is not before:
            changed[field] = after
    return msgspec.structs.replace(value, **changed) if changed else value


def _cut(kind: inspect.Type, value: Any, permits: Permits, path: str, hidden: list[str]) -> Any:
    if value is None or value is msgspec.UNSET or all(map(permits, _names_of(kind, value))):
        return value
    plain = _plain_type(kind)
    if isinstance(plain, inspect.StructType):
        return _cut_struct(value, permits, path + ".", hidden)
    if _is_name(plain):
        if plain is kind:
            raise Internal  # it may not be told, and the answer has no place for its absence
        hidden.append(path)
        return None
    hidden.append(path)
    if isinstance(plain, inspect.DictType):
        return {key: item for key, item in value.items() if all(map(permits, _names_of(plain, {key: item})))}
    assert isinstance(plain, inspect.CollectionType), plain
    return [item for item in value if all(map(permits, _names_of(plain.item_type, item)))]


_ENDS = ("existing_source", "existing_dest")


def error_seen(error: TopicsError, permits: Permits) -> TopicsError:
    """An error for somebody who may know only some names (`docs/spec/http-api.md#sec-8-7`).

    Most errors are about what the caller has named. Those here bring names that were stored, and are cut; a test makes
    every error there is with a foreign name in it. Called by `auth` for keys that are bound to prefixes.

    The error without the names that are not permitted and were not sent; itself if it has none."""
    if isinstance(error, RouterCycle):
        return _cycle(error, permits)
    if isinstance(error, TopicExistsIncompatible):
        return _incompatible(error, permits)
    if isinstance(error, CorruptSegment) and not permits(error.topic):
        return Internal("a record that this needs is damaged")
    return error


def _cycle(error: RouterCycle, permits: Permits) -> TopicsError:
    known = [topic for topic in error.cycle if permits(topic)]
    if len(known) == len(error.cycle):
        return error
    seen = RouterCycle(known)
    seen.message = f"the router would close a cycle through topics that the key may not see, and {' -> '.join(known)}"
    seen.detail = {"cycle": known, "hidden": ["cycle"]}
    return seen


def _incompatible(error: TopicExistsIncompatible, permits: Permits) -> TopicsError:
    """A router that was to be pointed elsewhere: where it goes now."""
    detail = dict(error.detail or {})
    ends = [key for key in _ENDS if key in detail]
    if all(permits(str(detail[key])) for key in ends):
        return error
    shown = {key: value for key, value in detail.items() if key not in ends} | {"hidden": ends}
    return TopicExistsIncompatible(f"router {detail['router']!r} already goes elsewhere", detail=shown)
