"""topics: a durable event engine for one machine.

Owns the public names of the package and nothing else. Each is loaded on first use, so that importing one part (a client
on a Spark executor, say) does not load the others.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topics.config import Settings
    from topics.errors import DataLoss, TopicsError

__version__ = "0.1.0"

__all__ = ["DataLoss", "Settings", "TopicsError", "__version__"]

_HOMES = {
    "DataLoss": "topics.errors",
    "Settings": "topics.config",
    "TopicsError": "topics.errors",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'topics' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
