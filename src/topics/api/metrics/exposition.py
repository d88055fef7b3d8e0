"""Exposition: metric families as Prometheus text (format 0.0.4).

A family's samples are rendered when they are made, so that thousands of them can be made in several steps and joined
in one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

Kind = Literal["gauge", "counter", "histogram"]

CONTENT_TYPE = b"text/plain; version=0.0.4"
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Family(msgspec.Struct):
    name: str
    kind: Kind
    help: str
    lines: list[str] = msgspec.field(default_factory=list)

    def add(self, labels: str, value: float) -> None:
        """`labels` in braces, or nothing."""
        self.lines.append(f"{self.name}{labels} {_number(value)}")


def label(**values: str) -> str:
    """Labels in braces."""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in values.items()) + "}"


def gauge(name: str, help: str, value: float) -> Family:
    return Family(name, "gauge", help, [f"{name} {_number(value)}"])


def counter(name: str, help: str, value: float) -> Family:
    return Family(name, "counter", help, [f"{name} {_number(value)}"])


def labelled(name: str, kind: Kind, help: str, by: str, values: Iterable[tuple[str, float]]) -> Family:
    family = Family(name, kind, help)
    for text, value in values:
        family.add(label(**{by: text}), value)
    return family


def histogram(name: str, help: str, *, bounds: Sequence[float], counts: Sequence[int], total: float) -> Family:
    family = Family(name, "histogram", help)
    add_histogram(family, "", bounds=bounds, counts=counts, total=total)
    return family


def add_histogram(family: Family, labels: str, *, bounds: Sequence[float], counts: Sequence[int], total: float) -> None:
    """`counts` are per bucket, the last one for everything above the bounds; buckets are shown cumulated. `labels`
    without braces."""
    name, seen = family.name, 0
    before = f"{labels}," if labels else ""
    for bound, count in zip([*map(_number, bounds), "+Inf"], counts, strict=True):
        seen += count
        family.lines.append(f'{name}_bucket{{{before}le="{bound}"}} {seen}')
    braced = f"{{{labels}}}" if labels else ""
    family.lines.append(f"{name}_sum{braced} {_number(total)}")
    family.lines.append(f"{name}_count{braced} {seen}")


def exposition(families: Iterable[Family]) -> bytes:
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += family.lines
    return ("\n".join(lines) + "\n").encode()


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
