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
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+: .+)$", re.MULTILINE)
_GONE: Final = re.compile(r"JAVA_GATEWAY_EXITED|stopped SparkContext")
"""Java ended, or Spark in it: why, it has said on its way out."""
_LAST_WORDS: Final = re.compile(r'^(?:Exception in thread "main" \S+: |Error: |\S+ ERROR \w+: )(.+)$', re.MULTILINE)
_CHARS_MAX: Final = 400


class JobFailed(TopicsError):
    """A job ended before it was through."""


def failure_of(error: BaseException, java_said: str = "") -> TopicsError:
    """The sentence behind an error that Spark raised; Spark's own if nothing of ours is in it.

    `java_said` is what Java wrote to its stderr."""
    found = _OURS.findall(str(error))
    if not found:
        return JobFailed(f"Spark failed: {_own_sentence(error, java_said)[:_CHARS_MAX]}")
    name, sentence = found[-1]
    return ConfigError(sentence) if name.endswith(".ConfigError") else JobFailed(sentence)


def _own_sentence(error: BaseException, java_said: str) -> str:
    """The first line and the innermost cause, or what Java said first on its way out."""
    told = _WRAPPING.sub("", str(error))
    words = _LAST_WORDS.findall(java_said) if _GONE.search(told) else []
    if words:
        return str(words[0])
    first = next(filter(None, map(str.strip, told.splitlines())), type(error).__name__)
    causes = [cause for cause in _CAUSE.findall(told) if cause not in first]
    return f"{first} ({causes[-1]})" if causes else first
