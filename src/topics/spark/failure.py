"""What our own code raised inside Spark, taken out of Spark's wrapping.

An error of a planner or a task comes back to the driver as text: a Java stack trace around a Python one. The last line
that names a class of ours is the sentence its reader needs. Called by the verbs of the command line.
"""

from __future__ import annotations

import re
from typing import Final

from topics.errors import ConfigError, TopicsError

_OURS: Final = re.compile(r"^(?:\w+\.)*?(topics\.[\w.]+): (.+)$", re.MULTILINE)
_WRAPPING: Final = re.compile(r"\AAn error occurred while calling \S+\n: (?:[\w.$]+: )?")
"""What Py4J puts in front of an exception of Java: the call, and the class."""
_CHARS_MAX: Final = 400


class JobFailed(TopicsError):
    """A job ended before it was through."""


def failure_of(error: BaseException) -> TopicsError:
    """The sentence behind an error that Spark raised; Spark's own first line if nothing of ours is in it."""
    found = _OURS.findall(str(error))
    if not found:
        lines = (line.strip() for line in _WRAPPING.sub("", str(error)).splitlines())
        first = next(filter(None, lines), type(error).__name__)
        return JobFailed(f"Spark failed: {first[:_CHARS_MAX]}")
    name, sentence = found[-1]
    return ConfigError(sentence) if name.endswith(".ConfigError") else JobFailed(sentence)
