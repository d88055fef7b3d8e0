"""Lets Spark find the data source `topics`: it looks for `DefaultSource` in every top-level package `pyspark_*`.

Tiny, and lazy: one such package that fails to import hides all of them from Spark, so ours says "no such name" instead.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(name)
    try:
        from topics.spark.source import TopicsDataSource
    except ImportError as error:
        raise AttributeError(f"{name}: {error}") from error
    return TopicsDataSource
