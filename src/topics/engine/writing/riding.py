"""Riding: ops that travel in one submission with an append, in front of its records; both are kept or neither is.

So a job ends together with its record in the history, and a schedule's cursor moves together with its ticks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from topics.model.ops import Op


class Riding(NamedTuple):
    """`finish` applies the ops, before the records are published. `topic_id` says whose they are, if not the append's
    own: a topic of the same log group."""

    ops: Sequence[Op]
    finish: Callable[[], object]
    durable: bool = False
    topic_id: int = 0


ALONE = Riding((), lambda: None)
