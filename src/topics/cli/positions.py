"""Where to begin and end in a topic: `start`, `end`, a seq, `-N` from the end, `@time`, or a printed position."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import click

from topics import limits
from topics.client import Topic
from topics.model.position import is_token, parse_token

_SEQ = re.compile("-?[0-9]{1,20}").fullmatch
_MS = re.compile("[0-9]{1,20}").fullmatch
HELP = "start, end, a seq, -N (N before the end), @time (ISO 8601, or ms since the epoch) or a printed position"


class Position(click.ParamType[str]):
    name = "position"

    def convert(self, value: str | int, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if text in ("start", "end") or (_SEQ(text) and abs(int(text)) <= limits.U64_MAX):
            return text
        if is_token(text):
            return text
        if not text.startswith("@"):
            self.fail(f"{text!r} is no position; give {HELP}", param, ctx)
        try:
            parse_time(text)
        except (ValueError, OverflowError):
            self.fail(f"{text!r} is no time; give @2026-01-31T12:00 or @1769860800000", param, ctx)
        return text


def parse_time(text: str) -> int:
    """Milliseconds of `@time`; a time without a zone is local."""
    body = text.removeprefix("@")
    if _MS(body):
        return int(body)
    return int(datetime.fromisoformat(body).astimezone(UTC).timestamp() * 1000)


def place_before(topic: Topic, position: str) -> int | str:
    """What to read behind: the next record is the first one wanted. Unlike a seq, a printed position stands behind its
    record, and knows its topic again."""
    return position if is_token(position) else cursor_before(topic, position)


def cursor_before(topic: Topic, position: str) -> int:
    """The cursor whose next record is the first one wanted; of a printed position, its seq."""
    if position == "start":
        return 0
    if is_token(position):
        return parse_token(position).seq
    state = topic.state(touch=False)
    if position == "end":
        return state.head_seq
    if position.startswith("@"):
        return cursor_at(topic, parse_time(position))
    number = int(position)
    if number < 0 or position == "-0":  # as many as there are: what retention took before is not asked for
        return max(state.head_seq + number, state.earliest_seq - 1)
    return max(number - 1, 0)


def cursor_at(topic: Topic, ts: int) -> int:
    """Before the first record of this time or later. Binary search: times never fall as seqs grow."""
    state = topic.state(touch=False)
    low, high = state.earliest_seq - 1, state.head_seq
    while low < high:
        middle = (low + high) // 2
        found = topic.page(middle, limit=1).records
        if not found or found[0].ts >= ts:
            high = middle
        else:
            low = found[0].seq
    return low
