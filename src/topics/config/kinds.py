"""Kinds of settings: what a value may look like, as text and as a Python value.

A kind is the row of the settings table without its name and default. `parse` turns text into a value, `check` takes a
Python value; both raise `BadValue` for what is not one at all. `clamp` moves a value that is one, but out of range.
"""

import os
import re
from typing import ClassVar

import msgspec

Value = int | float | str | bool | None

U63_MAX = 2**63 - 1  # everything counted in bytes fits a signed 64-bit file offset
DURATION_MS_MAX = (
    366 * 86_400_000
)  # a year and a day: longer than any timer is needed, short enough for every event loop
_DIGITS = re.compile(r"[0-9]+")
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?")


class BadValue(Exception):
    """Not a value of this kind; the resolver adds which setting and what is allowed."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One row: what it is for, in what unit. `secret` values are never shown."""

    help: str
    unit: str = ""
    secret: bool = False
    zero_is_default: ClassVar[bool] = False

    @property
    def allowed(self) -> str:
        raise NotImplementedError

    def parse(self, text: str) -> Value:
        raise NotImplementedError

    def check(self, value: object) -> Value:
        raise NotImplementedError

    def clamp(self, value: Value) -> Value:
        return value


class Int(Kind, frozen=True, kw_only=True):
    low: int = 0
    high: int = U63_MAX

    @property
    def allowed(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def parse(self, text: str) -> Value:
        if not _DIGITS.fullmatch(text):
            raise BadValue
        significant = text.lstrip("0")
        return int(significant or "0") if len(significant) < 20 else U63_MAX + 1

    def check(self, value: object) -> Value:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise BadValue
        return value

    def clamp(self, value: Value) -> Value:
        assert isinstance(value, int)
        return min(max(value, self.low), self.high)


class IntOrAuto(Int, frozen=True, kw_only=True):
    """0 asks for the default, which depends on the machine."""

    zero_is_default: ClassVar[bool] = True

    @property
    def allowed(self) -> str:
        return f"{Int.allowed.__get__(self)}, or 0 for the default"


class Ratio(Kind, frozen=True, kw_only=True):
    @property
    def allowed(self) -> str:
        return "a decimal number from 0 to 1"

    def parse(self, text: str) -> Value:
        if not _DECIMAL.fullmatch(text):
            raise BadValue
        return float(text)

    def check(self, value: object) -> Value:
        if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
            raise BadValue
        return float(value)

    def clamp(self, value: Value) -> Value:
        assert isinstance(value, float)
        return min(value, 1.0)


class Bool(Kind, frozen=True, kw_only=True):
    allowed_texts: ClassVar[dict[str, bool]] = {"1": True, "true": True, "0": False, "false": False}

    @property
    def allowed(self) -> str:
        return "1, true, 0 or false"

    def parse(self, text: str) -> Value:
        try:
            return self.allowed_texts[text]
        except KeyError:
            raise BadValue from None

    def check(self, value: object) -> Value:
        if not isinstance(value, bool):
            raise BadValue
        return value


class Choice(Kind, frozen=True, kw_only=True):
    choices: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"

    def parse(self, text: str) -> Value:
        if text not in self.choices:
            raise BadValue
        return text

    def check(self, value: object) -> Value:
        if not isinstance(value, str):
            raise BadValue
        return self.parse(value)


class Text(Kind, frozen=True, kw_only=True):
    """Taken as it is, without the blanks around it; what it must mean is checked by whoever uses it."""

    @property
    def allowed(self) -> str:
        return "text without control characters"

    def parse(self, text: str) -> Value:
        if any(ord(char) < 32 or ord(char) == 127 for char in text):
            raise BadValue
        return text

    def check(self, value: object) -> Value:
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if not isinstance(value, str):
            raise BadValue
        return self.parse(value)
