"""Strict JSON bodies: RFC 8259 in valid UTF-8, at most 127 levels deep, into a prebuilt struct.

    count_fields   how many fields a text has outside payloads, without an object for each
    look_again     the rare bodies that msgspec refuses and the contract takes: lone surrogates inside payloads, equal
                   keys of which the last counts, and fields that nobody knows
    BodyDecoder    a body into its struct, or an `InvalidRequest` that says what is wrong and what is allowed
    warnings_of    sentences about fields that were left out (`docs/spec/http-api.md#sec-6`)

msgspec does the work: it is strict, keeps integers and floats apart, and hands `data` and `meta` over as slices. What
it leaves open is closed here: it does not look at the encoding of slices and of skipped values, and it knows no depth
but the interpreter's stack. Called by `requests` and `ws`."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from topics import limits
from topics.errors import InvalidRequest
from topics.model.record import RecordIn

PAYLOAD_DEPTH = 4  # body, list, record: what is deeper is inside a payload, or below a field of ours
_NOT_FIELD_MARKS = bytes(code for code in range(256) if code not in b'[]{}":')
_STEPS = bytes(1 if code in b"[{" else 255 if code in b"]}" else 0 for code in range(256))  # 255 is -1 as int8
_COLON = ord(":")


def count_fields(text: bytes) -> int:
    """Of a text that is valid JSON; of any other, some number."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")  # now every quote begins or ends a string
    marks = text.translate(None, _NOT_FIELD_MARKS)
    # If all quotes stand in adjacent pairs, no string holds a mark.
    if 2 * marks.count(b'""') != marks.count(b'"'):
        marks = b"".join(marks.split(b'"')[::2])
    marks = marks.replace(b'"', b"")
    import numpy as np  # rarely needed, and slow to load for a client that never decodes a request

    depth = np.frombuffer(marks.translate(_STEPS), np.int8).cumsum(dtype=np.int32)
    is_field = np.frombuffer(marks, np.uint8) == _COLON
    return int((is_field & (depth < PAYLOAD_DEPTH)).sum())


COUNTED_BYTES_MIN = 64 * limits.KIB
"""A shorter body has not enough fields to matter."""


class NotTaken(Exception):
    """The contract does not take this body either."""


class TooManyFields(NotTaken):
    """More than any request has a use for, and too many to take apart."""


class Unknown(NamedTuple):
    """A field that nobody knows, and those that could be meant."""

    path: str
    name: str
    known: tuple[str, ...]


def look_again(
    body: bytes, decode: Callable[[bytes], Any], *, kind: Any, carries_payloads: bool, unknown: list[Unknown]
) -> Any:
    """The value of a body that `decode`, a decoder of `kind`, refused. Raises NotTaken, or what `decode` or a JSON
    reader raises."""
    if len(body) > COUNTED_BYTES_MIN and count_fields(body) > limits.FIELDS_MAX:
        raise TooManyFields
    mark = _absent_mark(body)
    masked = _mask_lone_surrogates(body, mark) if carries_payloads else body
    value = decode(_Rebuilding(unknown).text(_type_of(kind), msgspec.Raw(masked.lstrip(_BLANKS)), ""))
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


# --- repeated and unknown keys ---------------------------------------------------------------------------------------

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])
_type_of = cache(inspect.type_info)
_BLANKS = b" \t\r\n"


class _Rebuilding:
    """Writes a text anew by the type it should have: in every object whose fields we know, of equal keys only the last
    one and no unknown ones. What does not fit its type is left for the decoder to refuse."""

    def __init__(self, unknown: list[Unknown]) -> None:
        self._unknown = unknown
        self._seen: set[tuple[str, str]] = set()

    def text(self, kind: inspect.Type, text: msgspec.Raw, path: str) -> msgspec.Raw:
        if _starts(text, b"{"):
            kind = _choice(kind, text)
            if isinstance(kind, inspect.StructType):
                return self._struct(kind, text, path)
            if isinstance(kind, inspect.DictType) and _has_structs(kind.value_type):
                entries = _OBJECT.decode(text).items()
                return _encoded({name: self.text(kind.value_type, entry, path + "*.") for name, entry in entries})
        elif _starts(text, b"["):
            kind = _choice(kind, text)
            if isinstance(kind, inspect.CollectionType) and _has_structs(kind.item_type):
                items = _ARRAY.decode(text)
                return _encoded([self.text(kind.item_type, item, path[:-1] + "[].") for item in items])
        return text

    def _struct(self, kind: inspect.StructType, text: msgspec.Raw, path: str) -> msgspec.Raw:
        known = {field.encode_name: field.type for field in kind.fields}
        kept: dict[str, msgspec.Raw] = {}
        for name, value in _OBJECT.decode(text).items():
            if name in known:
                kept[name] = self.text(known[name], value, f"{path}{name}.")
            elif name == kind.tag_field:
                kept[name] = value
            elif (path, name) not in self._seen:
                self._seen.add((path, name))
                self._unknown.append(Unknown(path, name, tuple(known)))
        return _encoded(kept)


def _choice(kind: inspect.Type, text: msgspec.Raw) -> inspect.Type:
    """Of several types the one that the text is for."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if not isinstance(kind, inspect.UnionType):
        return kind
    wanted = (inspect.StructType, inspect.DictType) if _starts(text, b"{") else (inspect.CollectionType,)
    choices = [choice for choice in kind.types if isinstance(choice, wanted)]
    if len(choices) > 1:
        choices = [choice for choice in choices if _has_tag(choice, text)]
    return choices[0] if choices else kind


def _has_tag(kind: inspect.Type, text: msgspec.Raw) -> bool:
    if not isinstance(kind, inspect.StructType) or kind.tag_field is None:
        return False
    return bytes(_OBJECT.decode(text).get(kind.tag_field, b"")) == msgspec.json.encode(kind.tag)


def _has_structs(kind: inspect.Type) -> bool:
    choices = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return any(isinstance(choice, inspect.StructType) for choice in choices)


def _starts(text: msgspec.Raw, opening: bytes) -> bool:
    return bytes(memoryview(text)[:1]) == opening


def _encoded(value: dict[str, msgspec.Raw] | Iterable[msgspec.Raw]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


T = TypeVar("T")

REFUSALS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
SHORTEST_DEEP_TEXT = 2 * (limits.JSON_DEPTH_MAX + 1)  # an opening and a closing bracket per level
_UNKNOWN = "Object contains unknown field"
_FLAT_PASSES = 8
assert 2 * _FLAT_PASSES < limits.JSON_DEPTH_MAX
_NOT_MARKS = bytes(code for code in range(256) if code not in b'[]{}"')


class BodyDecoder(Generic[T]):
    """Decodes bodies into one struct type. `carries_payloads`: the struct has `records` of the write shape."""

    def __init__(self, kind: Any, *, carries_payloads: bool = False) -> None:
        self._kind = kind
        self._decode = msgspec.json.Decoder(kind).decode
        self._carries_payloads = carries_payloads

    def __call__(self, body: bytes, unknown: list[Unknown] | None = None) -> T:
        """The body as a value; everything the contract refuses about its text is an InvalidRequest. Fields that nobody
        knows are left out, and added to `unknown`."""
        try:
            value: T = self._decode(body)
        except REFUSALS as error:
            value = self._look_again(body, error, [] if unknown is None else unknown)
        if not body.isascii():
            check_utf8(body)
        if len(body) >= SHORTEST_DEEP_TEXT and is_too_deep(body):
            raise _too_deep()
        return value

    def _look_again(self, body: bytes, error: Exception, unknown: list[Unknown]) -> T:
        """For the rare bodies that msgspec refuses and the contract takes."""
        try:
            if not isinstance(error, RecursionError):
                value: T = look_again(
                    body, self._decode, kind=self._kind, carries_payloads=self._carries_payloads, unknown=unknown
                )
                return value
        except RecursionError:
            error = RecursionError()
        except TooManyFields:
            raise InvalidRequest(f"a body has at most {limits.FIELDS_MAX} fields outside payloads") from None
        except NotTaken:
            pass
        except REFUSALS as later:
            if str(error).startswith(_UNKNOWN):  # that is no fault: another one is to be told
                error = later
        raise _too_deep() if isinstance(error, RecursionError) else InvalidRequest(explain(error, self._kind))


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"JSON may be nested at most {limits.JSON_DEPTH_MAX} levels deep")


_AT_PATH = re.compile(r"Invalid enum value .* - at `\$((?:\.\w+|\[[^]]*\])*)`").fullmatch


def explain(error: Exception, kind: Any) -> str:
    """What is wrong with a body, or with fields that were to become a `kind`, and what is allowed instead."""
    if isinstance(error, REFUSALS) and not isinstance(error, msgspec.ValidationError):
        return f"not valid JSON: {error}"
    at = _AT_PATH(str(error))
    allowed = _allowed(_type_of(kind), re.findall(r"(?<=\.)\w+|\[", at[1])) if at else ()
    return f"{error}; allowed: {', '.join(map(str, allowed))}" if allowed else str(error)


def _allowed(kind: inspect.Type, path: Sequence[str]) -> tuple[Any, ...]:
    """The values that a literal type at this path has; none if there is no such type."""
    if isinstance(kind, inspect.Metadata):
        return _allowed(kind.type, path)
    if isinstance(kind, inspect.UnionType):
        return next((found for choice in kind.types if (found := _allowed(choice, path))), ())
    if not path:
        return kind.values if isinstance(kind, inspect.LiteralType) else ()
    if isinstance(kind, inspect.StructType):
        return next((_allowed(each.type, path[1:]) for each in kind.fields if each.encode_name == path[0]), ())
    if isinstance(kind, inspect.CollectionType):
        return _allowed(kind.item_type, path[1:])
    return _allowed(kind.value_type, path[1:]) if isinstance(kind, inspect.DictType) else ()


def check_utf8(text: bytes) -> None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"not valid UTF-8 (byte {error.start})") from None


def _is_flat(brackets: bytes) -> bool:
    """Whether balanced brackets vanish when the innermost pairs are taken away a few times, as nearly all texts do.

    A pass takes away one or two levels, so what vanishes is far from the limit."""
    for _ in range(_FLAT_PASSES):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if not brackets:
            return True
    return False


def is_too_deep(text: bytes) -> bool:
    """Whether a text that is known to be valid JSON is nested deeper than the limit. Linear, and no loop in Python."""
    if len(text) < SHORTEST_DEEP_TEXT:
        return False
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")  # now every quote begins or ends a string
    marks = text.translate(None, _NOT_MARKS)
    if len(marks) < SHORTEST_DEEP_TEXT:
        return False
    # If all quotes stand in adjacent pairs, each run of quotes is whole strings, so no string holds a bracket.
    if 2 * marks.count(b'""') != marks.count(b'"'):
        marks = b"".join(marks.split(b'"')[::2])
    marks = marks.replace(b'"', b"")
    if _is_flat(marks):
        return False
    import numpy as np  # rarely needed, and slow to load for a client that never decodes a request

    steps = np.frombuffer(marks.translate(_STEPS), np.int8)
    return int(steps.cumsum(dtype=np.int32).max(initial=0)) > limits.JSON_DEPTH_MAX


SENTENCES_MAX = 10  # fields that are named; the rest is counted
NAME_CHARS_MAX = 64  # of a name that is repeated to whoever sent it


def warnings_of(unknown: Sequence[Unknown]) -> list[str]:
    sentences = [_sentence(field) for field in unknown[:SENTENCES_MAX]]
    if len(unknown) > SENTENCES_MAX:
        sentences.append(f"{len(unknown) - SENTENCES_MAX} more unknown fields are ignored")
    return sentences


def _sentence(field: Unknown) -> str:
    name = field.name if len(field.name) <= NAME_CHARS_MAX else field.name[:NAME_CHARS_MAX] + "..."
    nearest = difflib.get_close_matches(field.name[:NAME_CHARS_MAX], field.known, n=1)
    hint = f'; did you mean "{nearest[0]}"?' if nearest else ""
    return f'unknown field "{field.path}{name}" is ignored{hint}'


def with_warnings(body: bytes, sentences: Sequence[str]) -> bytes:
    """A JSON object with the sentences as its last key."""
    return b'%b,"warnings":%b}' % (body[:-1], msgspec.json.encode(sentences))
