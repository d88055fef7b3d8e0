"""Meta texts with keys of our own added: dead letters and routed copies (`docs/spec/semantics.md#sec-15-5` and
`docs/spec/semantics.md#sec-16-9`).

The caller's text stays byte for byte as it was; our keys go behind its last one. Keys of ours that are there already,
from an earlier hop, are taken out first. A meta that is no object moves under `_topics_original_meta`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Final

import msgspec

ORIGINAL_META: Final = "_topics_original_meta"

_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LENIENT = json.JSONDecoder(parse_int=str, parse_float=str)
_SPACE = " \t\n\r"


def with_keys(meta: bytes | None, added: Mapping[str, bytes], *, keys_max: int | None = None) -> bytes:
    """`meta` with the added keys (name to JSON text). With `keys_max`, an object that has so many is wrapped too."""
    if meta is None:
        return _joined(_members(added))
    if not meta.lstrip().startswith(b"{"):
        return _joined(_members({**added, ORIGINAL_META: meta}))
    keys = _keys(meta)
    if any(name in added for name in keys):
        meta = _without(meta, added)
        keys = keys - added.keys()
    if keys_max is not None and len(keys) >= keys_max:
        return _joined(_members({**added, ORIGINAL_META: meta}))
    body = meta.strip()[1:-1]
    return _joined([body, *_members(added)] if keys else _members(added))


def without_keys(meta: bytes, prefix: str) -> bytes | None:
    """What `with_keys` was given, if our keys begin so: `meta` without them, None if nothing else was in it, and what
    was wrapped as it was. One that is no object stays as it is."""
    if not meta.lstrip().startswith(b"{"):
        return meta
    keys = _keys(meta)
    gone = {name: b"" for name in keys if name.startswith(prefix)}
    if not gone:
        return meta
    if len(gone) == len(keys):
        return None
    rest = _without(meta, gone)
    if keys - gone.keys() == {ORIGINAL_META}:
        return rest.strip()[:-1].partition(b":")[2].strip()
    return rest


def _members(added: Mapping[str, bytes]) -> list[bytes]:
    return [msgspec.json.encode(name) + b":" + text for name, text in added.items()]


def _joined(members: list[bytes]) -> bytes:
    return b"{" + b",".join(members) + b"}"


def _keys(meta: bytes) -> set[str]:
    try:
        return set(_KEYS.decode(meta))
    except msgspec.DecodeError:  # an escaped lone surrogate somewhere
        return set(_LENIENT.decode(meta.decode()))


def _without(meta: bytes, names: Mapping[str, bytes]) -> bytes:
    """The same object without these keys; the other members keep their bytes."""
    text = meta.decode()
    kept: list[bytes] = []
    at = text.index("{") + 1
    while True:
        start = at = _past_space(text, at)
        if text[at] == "}":
            break
        name, at = scanstring(text, at + 1, False)
        at = _past_space(text, _past_space(text, at) + 1)
        _, at = _LENIENT.raw_decode(text, at)
        if name not in names:
            kept.append(text[start:at].encode())
        at = _past_space(text, at)
        if text[at] == "}":
            break
        at += 1
    return _joined(kept)


def _past_space(text: str, at: int) -> int:
    while text[at] in _SPACE:
        at += 1
    return at
