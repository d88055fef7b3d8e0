"""Tables of a catalog: `CREATE TABLE orders USING topics OPTIONS (url '...', subscribe 'orders')`.

Spark gives a Python source its options when such a table is made, and then keeps nothing but the table's schema: a read
of the table is given no options at all. So the options are kept in the schema, as metadata of its first column, which
every catalog stores and gives back. A key is never kept there: everybody who may describe the table could read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from topics.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_KEPT: Final = "topics.options"
# What Spark adds to the options of a table that is being made.
_OF_CATALOG: Final = frozenset({"provider", "location", "owner", "external", "comment", "is_managed_location"})
_DOUBLED: Final = "option."


def is_of_catalog(options: Mapping[str, str]) -> bool:
    """Whether a table of a catalog is being made with these options."""
    return any(name.lower() == "provider" for name in options)


def without_catalog(options: Mapping[str, str]) -> dict[str, str]:
    """What the user gave."""
    if not is_of_catalog(options):
        return dict(options)
    names = (name for name in options if name.lower() not in _OF_CATALOG and not name.lower().startswith(_DOUBLED))
    return {name: options[name] for name in names}


def keeping(options: Mapping[str, str], schema: StructType) -> StructType:
    """The schema of a table that is made with these options, and keeps them."""
    from pyspark.sql.types import StructField, StructType

    if any(name.lower() == "apikey" for name in options):
        raise ConfigError("a table in a catalog keeps no key: give apiKeyFile, or set TOPICS_API_KEY where it is read")
    first, *others = schema.fields
    carrier = StructField(first.name, first.dataType, first.nullable, {_KEPT: json.dumps(dict(options))})
    return StructType([carrier, *others])


def kept_in(schema: StructType, options: Mapping[str, str]) -> Mapping[str, str]:
    """The options of a read: those given, or those that its table keeps, under what a query adds to them."""
    for field in schema.fields:
        if _KEPT in field.metadata:
            return {**json.loads(field.metadata[_KEPT]), **without_catalog(options)}
    if not options:
        raise ConfigError(
            "this table keeps no options: make it without columns, "
            "CREATE TABLE orders USING topics OPTIONS (url 'http://localhost:4000', subscribe 'orders')"
        )
    return options
