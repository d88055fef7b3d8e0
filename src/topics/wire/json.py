"""Strict JSON bodies: RFC 8259 in valid UTF-8, at most 127 levels deep, into a prebuilt struct.

`msgspec` does the work: it is strict, keeps integers and floats apart and hands `data` and `meta`
over as slices. What it leaves open is closed here: it does not look at the encoding of slices and of skipped values,
and it knows no depth but the interpreter's stack. What it refuses and the contract takes is in `second_look`.
Everything refused is an `InvalidRequest`. Called by `requests` and `ws`.
"""

from typing import Any, Generic, TypeVar

import msgspec

from topics import limits
from topics.errors import InvalidRequest
from topics.wire.second_look import NotTaken, TooManyFields, Unknown, look_again

T = TypeVar("T")

REFUSALS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
SHORTEST_DEEP_TEXT = 2 * (limits.JSON_DEPTH_MAX + 1)  # an opening and a closing bracket per level
_UNKNOWN = "Object contains unknown field"
_FLAT_PASSES = 8
assert 2 * _FLAT_PASSES < limits.JSON_DEPTH_MAX
_NOT_MARKS = bytes(code for code in range(256) if code not in b'[]{}"')
_STEPS = bytes(1 if code in b"[{" else 255 if code in b"]}" else 0 for code in range(256))  # 255 is -1 as int8


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
        raise _too_deep() if isinstance(error, RecursionError) else InvalidRequest(_explain(error))


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"JSON may be nested at most {limits.JSON_DEPTH_MAX} levels deep")


def _explain(error: Exception) -> str:
    return str(error) if isinstance(error, msgspec.ValidationError) else f"not valid JSON: {error}"


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
