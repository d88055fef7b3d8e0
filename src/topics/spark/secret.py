"""Secrets that travel from the driver to the executors and show nowhere on the way: keys, and locations that hold keys.

Plans, logs, exceptions and the Spark UI print objects with `repr` and `str`; both give stars. Pickles carry the value,
because an executor has to present it.
"""

from __future__ import annotations

from urllib.parse import urlsplit


class Secret:
    """A text that only `reveal` gives away."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(("Secret", self._text))

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return Secret, (self._text,)


def without_secrets(location: str) -> str:
    """A path or URI as it may be shown: no keys, no options."""
    if "://" not in location:
        return location
    parts = urlsplit(location)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
