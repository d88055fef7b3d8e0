"""Exposition: metric families as Prometheus text. Values in, bytes out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Kind = Literal["gauge", "counter", "histogram"]
Sample = tuple[str, str, float]
"""Suffix of the name, labels in braces or nothing, value."""

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Family(msgspec.Struct, frozen=True):
    name: str
    kind: Kind
    help: str
    samples: list[Sample]


def single(name: str, kind: Kind, help: str, value: float) -> Family:
    return Family(name, kind, help, [("", "", value)])


def labelled(name: str, kind: Kind, help: str, label: str, values: Iterable[tuple[str, float]]) -> Family:
    return Family(
        name, kind, help, [("", f'{{{label}="{text.translate(_ESCAPES)}"}}', value) for text, value in values]
    )


def histogram(name: str, help: str, *, bounds: Iterable[int], counts: Iterable[int], total: float) -> Family:
    """`counts` are per bucket, the last one for everything above the bounds; buckets are shown cumulated."""
    samples: list[Sample] = []
    seen = 0
    for bound, count in zip([*map(str, bounds), "+Inf"], counts, strict=True):
        seen += count
        samples.append(("_bucket", f'{{le="{bound}"}}', seen))
    return Family(name, "histogram", help, [*samples, ("_sum", "", total), ("_count", "", seen)])


def exposition(families: Iterable[Family]) -> bytes:
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines.extend(f"{family.name}{suffix}{labels} {_number(value)}" for suffix, labels, value in family.samples)
    return ("\n".join(lines) + "\n").encode()


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
