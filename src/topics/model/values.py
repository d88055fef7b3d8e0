"""Python values to records: what the library doors (embedded, client) take, turned into checked JSON text.

A value is encoded once; `Json` carries text that is JSON already, byte for byte. What JSON cannot say (NaN, infinities,
unknown types) is refused, because storing something else than was given would be silent loss. So is a value that is
`bytes`: it may be JSON text, which is to be given as `Json`, or anything else. Inside a value msgspec's rules hold: a
datetime becomes ISO text, a Decimal its digits, bytes base64 text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Annotated, Any

import msgspec

from topics import limits
from topics.errors import InvalidRequest
from topics.model.record import OnConflict, RecordIn, Text, UniqueIn

_encode = msgspec.json.Encoder().encode
_encode_lines = msgspec.json.Encoder().encode_lines
_decode_text = msgspec.json.Decoder(msgspec.Raw).decode
_decode_texts = msgspec.json.Decoder(list[msgspec.Raw]).decode


Json = msgspec.Raw
"""JSON text as it is to be stored: numbers, key order and white space stay as they are written."""


Span = float | timedelta
"""A length of time: seconds, or a timedelta."""
Moment = float | datetime
"""A point in time: Unix seconds as `time.time()` gives them, or a datetime with a time zone."""


class Unique(msgspec.Struct, frozen=True):
    """A key that one job at a time has: until that job is done or, with `period`, for so long after its append.
    `on_conflict` says what becomes of a second one: `keep` leaves the first, `replace` takes its place, `reject`
    raises `JobExists`."""

    key: str
    period: Span | None = None
    on_conflict: OnConflict = "keep"


class Event(msgspec.Struct, frozen=True):
    """One record to append, where its data alone is not enough. The last four are for jobs of a queue: it is handed
    out after `delay`, or at `deliver_at`; `priority` is -9 to 9, higher ones go first; `unique` is a key."""

    data: Any
    tag: str | None = None
    node: str | None = None
    meta: Any = None
    delay: Span | None = None
    deliver_at: Moment | None = None
    priority: int | None = None
    unique: str | Unique | None = None


_JOB_FIELDS = attrgetter("delay", "deliver_at", "priority", "unique")
_NO_JOB_FIELDS = (None, None, None, None)


def job_fields(event: Event) -> dict[str, Any]:
    """The event's fields of a job as a record has them (`RecordIn`); empty for most events."""
    given = _JOB_FIELDS(event)
    if given == _NO_JOB_FIELDS:
        return {}
    delay, deliver_at, priority, unique = given
    return {
        "delay_ms": None if delay is None else span_ms(delay, "delay"),
        "deliver_at": None if deliver_at is None else moment_ms(deliver_at, "deliver_at"),
        "priority": priority,
        "unique": None if unique is None else _unique_in(unique),
    }


def _unique_in(unique: str | Unique) -> UniqueIn:
    given = unique if isinstance(unique, Unique) else Unique(unique)
    try:
        given.key.encode()
    except (AttributeError, UnicodeEncodeError):
        raise InvalidRequest(f"unique must be a string or a topics.Unique with one as key, not {unique!r}") from None
    for_ms = None if given.period is None else span_ms(given.period, "period")
    return UniqueIn(key=given.key, for_ms=for_ms, on_conflict=given.on_conflict)


def span_ms(span: Span, name: str) -> int:
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise InvalidRequest(f"{name} must be a number of seconds or a timedelta, not negative, and is {span!r}")
    return round(seconds * 1000)


def moment_ms(moment: Moment, name: str) -> int:
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise InvalidRequest(f"{name} has no time zone; datetime.now(UTC) and .astimezone() make one that has")
        moment = moment.timestamp()
    if isinstance(moment, bool) or not isinstance(moment, int | float) or not 0 <= moment < math.inf:
        raise InvalidRequest(f"{name} must be a datetime or Unix time in seconds, not {moment!r}")
    return round(moment * 1000)


_BYTES = (bytes, bytearray, memoryview)
_LOOKED_AT = frozenset((Event, msgspec.Raw, *_BYTES))
_STRINGS = {str}


def record_of(value: Any) -> RecordIn:
    """Anything `append_many` takes: an `Event`, or the data itself."""
    if isinstance(value, Event):
        meta = msgspec.UNSET if value.meta is None else json_text(value.meta)
        return RecordIn(data=json_text(value.data), tag=value.tag, node=value.node, meta=meta, **job_fields(value))
    return RecordIn(data=json_text(value))


def several(records: Iterable[Any]) -> Iterable[Any]:
    """What `append_many` takes. One value that happens to be a series would become a record for each of its parts."""
    if isinstance(records, str | bytes | bytearray | memoryview | Mapping):
        raise InvalidRequest(
            f"append_many takes a list of records, and append takes one: this is a {type(records).__name__}"
        )
    return records


def records_of(values: Iterable[Any]) -> list[RecordIn]:
    return [record_of(value) for value in values]


def plain_texts(values: Sequence[Any]) -> Sequence[Text] | None:
    """The texts of many values, encoded together. None where each has to be looked at by itself: events, texts that
    are JSON already, nulls that may have been NaN, and whatever cannot be encoded."""
    kinds = set(map(type, values))
    if not _LOOKED_AT.isdisjoint(kinds):
        return None
    try:
        texts = _texts_of_strings(values) if kinds == _STRINGS else _texts_together(values)
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError):
        return None
    return texts if texts is not None and len(texts) == len(values) else None


def _texts_of_strings(values: Sequence[str]) -> list[bytes] | None:
    """A string's text has no line break, and nobody can have put broken JSON into it."""
    text = _encode_lines(values)
    return text[:-1].split(b"\n") if _is_unicode(text) else None


def _texts_together(values: Sequence[Any]) -> list[msgspec.Raw] | None:
    """Reading what was written shows that it is JSON: a `Json` inside a value was put in as it is."""
    text = _encode(values)
    return None if b"null" in text or not _is_unicode(text) else _decode_texts(text)


def json_text(value: Any) -> msgspec.Raw:
    if isinstance(value, msgspec.Raw):
        return _checked_text(value)
    refuse_bytes(value)
    try:
        text = _encode(value)
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"the value is not JSON: {error}") from None
    # NaN and the infinities come out as null; a null is rare enough to be looked at twice.
    if b"null" in text and _has_no_json_float(value):
        raise InvalidRequest("NaN and infinities are not JSON")
    return _checked_splice(text)


def refuse_bytes(value: Any) -> None:
    if isinstance(value, _BYTES):
        raise InvalidRequest(
            f"a record is JSON, and this is {type(value).__name__}: JSON text is given as topics.Json(...), "
            "other bytes as text, for instance base64.b64encode(...).decode()"
        )


def _checked_splice(text: bytes) -> msgspec.Raw:
    """A `Json` inside a value was put in as it is: the whole must still be JSON."""
    try:
        if _is_unicode(text):
            return _decode_text(text)
    except msgspec.DecodeError:
        pass
    return _checked_text(msgspec.Raw(text))


def _is_unicode(text: bytes) -> bool:
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _checked_text(raw: msgspec.Raw) -> msgspec.Raw:
    try:
        text = bytes(raw).decode()
        _check_json(text)
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the text is not JSON: {error}") from None
    return msgspec.Raw(text.strip(" \t\r\n").encode())


def _check_json(text: str) -> None:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        if "\\u" not in text:
            raise
        # An escape of a lone surrogate is carried as it is; msgspec does not know that, Python's reader does.
        _LENIENT.decode(text)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_LENIENT = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=str, parse_float=str)


def _has_no_json_float(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(_has_no_json_float(item) for item in value.values())
    if isinstance(value, msgspec.Struct):
        return any(_has_no_json_float(item) for item in msgspec.structs.asdict(value).values())
    if isinstance(value, list | tuple | set | frozenset):
        return any(_has_no_json_float(item) for item in value)
    return False


class ProgressReport(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How far the work on a job is, as its holder says it."""

    fraction: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    text: str | None = None


def progress_report(fraction: float | None, text: str | None) -> ProgressReport:
    """Checked here, in the thread of whoever says it. A text that is too long is cut: no job fails for that."""
    if fraction is not None and not 0 <= fraction <= 1:
        raise InvalidRequest(f"fraction must be 0 to 1, not {fraction}")
    if text is not None:
        text = text.encode(errors="replace")[: limits.PROGRESS_BYTES_MAX].decode(errors="ignore")
    return ProgressReport(None if fraction is None else float(fraction), text)
