"""Warnings: what a request had that was left out of account, one sentence each (`docs/spec/http-api.md#sec-6`).

Only ever reached by a request that has an unknown field: the decoder's first look takes all others.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import msgspec

from topics.wire.incoming.json import Unknown

SENTENCES_MAX = 10  # fields that are named; the rest is counted
NAME_CHARS_MAX = 64  # of a name that is repeated to whoever sent it


def warnings_of(unknown: Sequence[Unknown]) -> list[str]:
    sentences = [_sentence(field) for field in unknown[:SENTENCES_MAX]]
    if len(unknown) > SENTENCES_MAX:
        sentences.append(f"{len(unknown) - SENTENCES_MAX} more unknown fields are ignored")
    return sentences


def _sentence(field: Unknown) -> str:
    name = field.name if len(field.name) <= NAME_CHARS_MAX else field.name[:NAME_CHARS_MAX] + "..."
    nearest = difflib.get_close_matches(field.name[:NAME_CHARS_MAX], field.known, n=1)
    hint = f'; did you mean "{nearest[0]}"?' if nearest else ""
    return f'unknown field "{field.path}{name}" is ignored{hint}'


def with_warnings(body: bytes, sentences: Sequence[str]) -> bytes:
    """A JSON object with the sentences as its last key."""
    return b'%b,"warnings":%b}' % (body[:-1], msgspec.json.encode(sentences))
