"""Listing: what lies in a topic directory, sorted into ours and not ours.

Only names are looked at. Of two names with one number the canonically padded one counts; the other, like every foreign
name, is kept and reported. Temps of our own names are listed apart, everything else that ends in `.tmp` is foreign.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from topics.formats.names import SegmentPart, parse_dup, parse_segment, parse_tmp, segment_name
from topics.storage.fs import Fs

Parts = dict[SegmentPart, str]


@dataclass(slots=True)
class Listing:
    """File names by first seq and part; `ignored` are doubles and foreign names."""

    parts: dict[int, Parts] = field(default_factory=dict)
    temps: dict[int, Parts] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)


def list_topic_dir(fs: Fs, path: str) -> Listing:
    """The files of one topic; a directory that is not there is an empty one."""
    try:
        names = fs.listdir(path)
    except FileNotFoundError:
        return Listing()
    return sort_names(names)


def sort_names(names: Iterable[str]) -> Listing:
    listing = Listing()
    for name in sorted(names, key=lambda name: (len(name), name)):
        temp = parse_tmp(name)
        parsed = parse_segment(name if temp is None else temp)
        if parsed is None:
            if parse_dup(name) is None:
                listing.ignored.append(name)
            continue
        side = listing.parts if temp is None else listing.temps
        _choose(side.setdefault(parsed.first_seq, {}), parsed.part, name, parsed.first_seq, listing)
    listing.parts = dict(sorted(listing.parts.items()))
    return listing


def _choose(parts: Parts, part: SegmentPart, name: str, first_seq: int, listing: Listing) -> None:
    other = parts.get(part)
    if other is None:
        parts[part] = name
        return
    canonical = segment_name(first_seq, part)
    keep, lose = (name, other) if name.removesuffix(".tmp") == canonical else (other, name)
    parts[part] = keep
    listing.ignored.append(lose)
