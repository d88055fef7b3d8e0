"""Lets Spark find the data source `topics`: it looks for `DefaultSource` in every top-level package `pyspark_*`.

Tiny, and lazy: one such package that fails to import hides all of them from Spark. Where the source itself cannot be
imported, Spark gets one that says why as soon as it is used.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(name)
    try:
        from topics.spark.source import TopicsDataSource
    except ImportError as error:
        return _unusable(error)
    return TopicsDataSource


def _unusable(error: ImportError) -> Any:
    from pyspark.sql.datasource import DataSource

    reason = f"the data source topics cannot be loaded with this Python ({error}): pip install 'topicsdb[spark]'"

    class Unusable(DataSource):
        @classmethod
        def name(cls) -> str:
            return "topics"

        def __init__(self, options: Any) -> None:
            raise ImportError(reason)

    return Unusable
