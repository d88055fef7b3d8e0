"""Second look: the bodies that msgspec refuses and the contract takes. Only ever reached after a refusal.

    surrogates  an escape of a lone surrogate is carried inside `records[].data` and `records[].meta`
    last wins   of two equal keys the first may have any type, for the last one counts

Called only by `json.BodyDecoder`.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from topics.model.record import RecordIn


class NotTaken(Exception):
    """The contract does not take this body either."""


def look_again(body: bytes, decode: Callable[[bytes], Any], *, carries_payloads: bool) -> Any:
    """The value of a body that `decode` refused. Raises NotTaken, or what `decode` or a JSON reader raises."""
    mark = _absent_mark(body)
    masked = _mask_lone_surrogates(body, mark) if carries_payloads else body
    value = decode(_keep_last_keys(masked))
    if masked is body:
        return value
    if not hasattr(value, "records") or _has_lone_surrogate_outside_payloads(body):
        raise NotTaken
    return msgspec.structs.replace(value, records=[_unmasked(record, mark) for record in value.records])


# --- lone surrogates -------------------------------------------------------------------------------------------------

# One token per escape, so that the second half of `\\ud800` is not taken for an escape.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)
_LONE = re.compile("[\ud800-\udfff]")
_PRIVATE_USE = range(0xE000, 0xF900)


def _absent_mark(body: bytes) -> bytes:
    """A character that the body does not have."""
    for code in _PRIVATE_USE:
        if (mark := chr(code).encode()) not in body:
            return mark
    raise NotTaken


def _mask_lone_surrogates(body: bytes, mark: bytes) -> bytes:
    """The mark in place of the backslash of each lone surrogate's escape; the body itself if it has none."""
    masked = _ESCAPE.sub(lambda escape: mark + escape[1] if escape[1] else escape[0], body)
    return body if masked == body else masked


def _unmasked(record: RecordIn, mark: bytes) -> RecordIn:
    data, meta = record.data, record.meta
    if not isinstance(meta, msgspec.UnsetType):
        meta = msgspec.Raw(bytes(meta).replace(mark, b"\\"))
    return msgspec.structs.replace(record, data=msgspec.Raw(bytes(data).replace(mark, b"\\")), meta=meta)


class _Pairs(list[tuple[str, Any]]):
    """An object with all its keys, repeated ones too."""


def _has_lone_surrogate_outside_payloads(body: bytes) -> bool:
    """`body` is a valid JSON object but for its lone surrogates, and not too deep."""
    pairs = json.loads(body, object_pairs_hook=_Pairs, parse_int=str, parse_float=str)
    return any(_LONE.search(text) is not None for text in _texts_outside_payloads(pairs))


def _texts_outside_payloads(body: _Pairs) -> Iterator[str]:
    for key, value in body:
        yield key
        if key == "records" and isinstance(value, list):
            for record in value:
                yield from _texts(_without_payload(record) if isinstance(record, _Pairs) else record)
        else:
            yield from _texts(value)


def _without_payload(record: _Pairs) -> list[Any]:
    return [(key, None if key in ("data", "meta") else value) for key, value in record]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _texts(part)


# --- repeated keys ---------------------------------------------------------------------------------------------------

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])


def _keep_last_keys(body: bytes) -> bytes:
    """The body without the keys that a later equal key replaces, in every object whose fields we know."""
    fields = _OBJECT.decode(body)
    for key, rebuild in _KNOWN_OBJECTS.items():
        if key in fields:
            fields[key] = rebuild(fields[key])
    return msgspec.json.encode(fields)


def _in_object(text: msgspec.Raw) -> msgspec.Raw:
    return _encoded(_OBJECT.decode(text)) if _starts(text, b"{") else text


def _in_values(text: msgspec.Raw) -> msgspec.Raw:
    if not _starts(text, b"{"):
        return text
    return _encoded({name: _in_object(entry) for name, entry in _OBJECT.decode(text).items()})


def _in_items(text: msgspec.Raw) -> msgspec.Raw:
    return _encoded([_in_object(item) for item in _ARRAY.decode(text)]) if _starts(text, b"[") else text


_KNOWN_OBJECTS = {"config": _in_object, "topics": _in_values, "records": _in_items}


def _starts(text: msgspec.Raw, opening: bytes) -> bool:
    return bytes(memoryview(text)[:1]) == opening


def _encoded(value: dict[str, msgspec.Raw] | Iterable[msgspec.Raw]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
