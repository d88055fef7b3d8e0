"""JSON texts of Arrow columns, spelled as Spark's own `to_json` spells them.

A Python sink gets rows after Spark has planned the write, so it cannot put `to_json` in front; what `to_json` would
have given is built here from the same values: null fields of structs are left out, times are ISO 8601, bytes base64.
Types that `to_json` takes and this module does not are refused at planning.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

ToPlain = Callable[[Any], Any]
"""From a value as Arrow gives it to one that msgspec writes as wanted."""

_encode: Final = msgspec.json.Encoder(decimal_format="number").encode


def texts(array: pa.Array, to_plain: ToPlain) -> list[bytes | None]:
    """The JSON text of every value; None for null."""
    return [None if value is None else _encode(to_plain(value)) for value in array.to_pylist()]


def converter(kind: DataType) -> ToPlain:
    """How values of a Spark type become plain ones; raises TypeError for a type without a JSON form."""
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        return _struct({field.name: converter(field.dataType) for field in kind.fields})
    if isinstance(kind, t.ArrayType):
        return _array(converter(kind.elementType))
    if isinstance(kind, t.MapType):
        return _map(converter(kind.valueType))
    if isinstance(kind, t.VariantType):
        return _variant
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


def _map(item: ToPlain) -> ToPlain:
    return lambda value: {_key(key): None if each is None else item(each) for key, each in value}


def _key(key: Any) -> str:
    return ("true" if key else "false") if isinstance(key, bool) else str(key)


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
    return msgspec.Raw(format(value, "f").encode())


def _date(value: date) -> str:
    return value.isoformat()


def _timestamp(value: datetime) -> str:
    zone = value.strftime("%z")
    shown = "Z" if zone in ("+0000", "") else f"{zone[:3]}:{zone[3:5]}"
    return _local(value) + shown


def _local(value: datetime) -> str:
    return value.replace(tzinfo=None).isoformat(timespec="milliseconds")  # four digits of every year


def _binary(value: bytes) -> str:
    return base64.b64encode(value).decode()


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
    "binary": _binary,
}
