"""JSON texts of Arrow columns, spelled as Spark's own `to_json` spells them.

A Python sink gets rows after Spark has planned the write, so it cannot put `to_json` in front; what `to_json` would
have given is built here from the same values: null fields of structs are left out, times are ISO 8601, bytes base64,
and keys of maps are what Spark has inside: days, microseconds, Java's spelling of a number. Types that `to_json` takes
and this module does not are refused at planning.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from topics.errors import InvalidRequest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, MapType

ToPlain = Callable[[Any], Any]
"""From a value as Arrow gives it to one that msgspec writes as wanted."""

ToKey = Callable[[Any], str]
"""From a key of a map to the name that it has in the JSON object."""

_encode: Final = msgspec.json.Encoder(decimal_format="number").encode


def texts(array: pa.Array, to_plain: ToPlain) -> list[bytes | None]:
    """The JSON text of every value; None for null."""
    try:
        values = array.to_pylist()
    except (OverflowError, ValueError):  # years that Python's dates do not have
        raise InvalidRequest("a date before year 1 or after year 9999 cannot be written; convert it first") from None
    return [None if value is None else _encode(to_plain(value)) for value in values]


def converter(kind: DataType) -> ToPlain:
    """How values of a Spark type become plain ones; raises TypeError for a type without a JSON form."""
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        return _struct({field.name: converter(field.dataType) for field in kind.fields})
    if isinstance(kind, t.ArrayType):
        return _array(converter(kind.elementType))
    if isinstance(kind, t.MapType):
        return _map(_key_converter(kind), converter(kind.valueType))
    if isinstance(kind, t.VariantType):
        return _variant
    if isinstance(kind, t.DayTimeIntervalType):
        return _interval(kind.startField, kind.endField)
    made = _SIMPLE.get(kind.typeName())
    if made is None:
        raise TypeError(kind.simpleString())
    return made


def _struct(fields: dict[str, ToPlain]) -> ToPlain:
    def plain(value: dict[str, Any]) -> dict[str, Any]:
        return {name: to(value[name]) for name, to in fields.items() if value[name] is not None}

    return plain


def _array(item: ToPlain) -> ToPlain:
    return lambda value: [None if each is None else item(each) for each in value]


def _map(name: ToKey, item: ToPlain) -> ToPlain:
    return lambda value: {name(key): None if each is None else item(each) for key, each in value}


def _key_converter(kind: MapType) -> ToKey:
    made = _KEYS.get(kind.keyType.typeName())
    if made is None:
        raise TypeError(kind.simpleString())
    return made


def _variant(value: dict[str, bytes]) -> Any:
    from pyspark.sql.types import VariantVal

    return msgspec.Raw(VariantVal(value["value"], value["metadata"]).toJson().encode())


def _same(value: Any) -> Any:
    return value


def _float(value: float) -> Any:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _float32(value: float) -> Any:
    """The shortest text that means the same number of 32 bits."""
    return _float(float(str(np.float32(value))))


def _decimal(value: Decimal) -> Any:
    return msgspec.Raw(str(value).encode())  # which is how Java spells it, too


def _date(value: date) -> str:
    return value.isoformat()


def _timestamp(value: datetime) -> str:
    zone = value.strftime("%z")
    if zone in ("+0000", ""):
        return _local(value) + "Z"
    seconds = f":{zone[5:7]}" if zone[5:7].strip("0") else ""  # before there were time zones
    return f"{_local(value)}{zone[:3]}:{zone[3:5]}{seconds}"


def _local(value: datetime) -> str:
    return value.replace(tzinfo=None).isoformat(timespec="milliseconds")  # four digits of every year


def _time(value: time) -> str:
    text = value.isoformat()
    return text.rstrip("0") if value.microsecond else text


def _interval(first: int, last: int) -> ToPlain:
    """Spelled as SQL spells a literal of this type; fields are 0 (days) to 3 (seconds)."""
    names = ("DAY", "HOUR", "MINUTE", "SECOND")
    unit = names[first] if first == last else f"{names[first]} TO {names[last]}"

    def plain(value: timedelta) -> str:
        rest, shown = abs(_micros(value)), []
        for micros in _FIELD_MICROS[first : last + 1]:
            shown.append(rest // micros)
            rest %= micros
        texts = [f"{number:02d}" if at or first else str(number) for at, number in enumerate(shown)]
        fraction = f".{rest:06d}".rstrip("0") if last == len(names) - 1 and rest else ""
        days = f"{texts.pop(0)} " if first == 0 < last else ""
        return f"INTERVAL '{'-' if value < timedelta() else ''}{days}{':'.join(texts)}{fraction}' {unit}"

    return plain


_FIELD_MICROS: Final = (86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000)


def _binary(value: bytes) -> str:
    return base64.b64encode(value).decode()


# --- keys of maps ----------------------------------------------------------------------------------------------------

_EPOCH: Final = datetime(1970, 1, 1)


def _micros(value: timedelta) -> int:
    return value // timedelta(microseconds=1)


def _java_number(value: float, digits: str) -> str:
    """`digits` is the shortest text of the number; Java turns to exponents sooner than Python."""
    if not math.isfinite(value):
        return str(_float(value))
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return digits if "e" not in digits else str(value)
    sign, number, exponent = Decimal(digits).as_tuple()
    shown = "".join(map(str, number)).rstrip("0")
    power = len(number) - 1 + int(exponent)
    return f"{'-' if sign else ''}{shown[0]}.{shown[1:] or '0'}E{power}"


def _float32_key(value: float) -> str:
    return _java_number(value, str(np.float32(value)))


def _boolean_key(value: bool) -> str:
    return "true" if value else "false"


def _date_key(value: date) -> str:
    return str((value - _EPOCH.date()).days)


def _timestamp_key(value: datetime) -> str:
    return str(_micros(value.astimezone(UTC).replace(tzinfo=None) - _EPOCH))


def _ntz_key(value: datetime) -> str:
    return str(_micros(value - _EPOCH))


def _time_key(value: time) -> str:
    return str(_micros(datetime.combine(_EPOCH.date(), value) - _EPOCH) * 1000)


_KEYS: Final[dict[str, ToKey]] = {
    **dict.fromkeys(("string", "char", "varchar", "byte", "short", "integer", "long", "decimal"), str),
    "boolean": _boolean_key,
    "float": _float32_key,
    "double": lambda value: _java_number(value, repr(value)),
    "date": _date_key,
    "timestamp": _timestamp_key,
    "timestamp_ntz": _ntz_key,
    "time": _time_key,
    "daytimeinterval": lambda value: str(_micros(value)),
}

_SIMPLE: Final[dict[str, ToPlain]] = {
    "void": _same,
    "string": _same,
    "char": _same,
    "varchar": _same,
    "boolean": _same,
    "byte": _same,
    "tinyint": _same,
    "short": _same,
    "smallint": _same,
    "integer": _same,
    "int": _same,
    "long": _same,
    "bigint": _same,
    "float": _float32,
    "double": _float,
    "decimal": _decimal,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _local,
    "time": _time,
    "binary": _binary,
}
