"""Listing: what lies in a topic directory, sorted into ours and not ours.

Only names are looked at. Of two names with one number the canonically padded one counts; the other, like every foreign
name, is kept and reported. Temps of our own names are listed apart, everything else that ends in `.tmp` is foreign.

Remnants: files that a crash, an operator or an earlier repair left in a topic directory
(`docs/spec/storage.md#sec-9-7`).

Each function looks, decides and puts the change off until writing is allowed. Foreign names are reported and kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from topics.formats.file_names import (
    DUP_SUFFIX,
    TMP_SUFFIX,
    SegmentPart,
    parse_dup,
    parse_segment,
    parse_tmp,
    segment_name,
)
from topics.formats.segments.idx import idx_agrees
from topics.storage.fs import ReadFs, names_in
from topics.storage.segments.findings import Finding, Severity
from topics.storage.segments.topic_dir import TopicDir

Parts = dict[SegmentPart, str]


@dataclass(slots=True)
class Listing:
    """File names by first seq and part; `ignored` are doubles and foreign names."""

    parts: dict[int, Parts] = field(default_factory=dict)
    temps: dict[int, Parts] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)


def list_topic_dir(fs: ReadFs, path: str) -> Listing:
    """The files of one topic; a directory that is not there is an empty one."""
    return sort_names(names_in(fs, path))


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
        parts = side.setdefault(parsed.first_seq, {})
        if parts.setdefault(parsed.part, name) is not name:
            _choose(parts, parsed.part, name, parsed.first_seq, listing)
    listing.parts = dict(sorted(listing.parts.items()))
    return listing


def _choose(parts: Parts, part: SegmentPart, name: str, first_seq: int, listing: Listing) -> None:
    """Between `name` and the one with the same number that was found before."""
    other = parts[part]
    canonical = segment_name(first_seq, part)
    keep, lose = (name, other) if name.removesuffix(".tmp") == canonical else (other, name)
    parts[part] = keep
    listing.ignored.append(lose)


PADDED_LEN = len(segment_name(1, "idx")) - len("idx")
"""A name of this length and its part is padded as we pad; only the few others are worth a closer look."""


def note_names(place: TopicDir, listing: Listing) -> None:
    """Report what is not ours, and remember names that are ours but padded otherwise."""
    for name in listing.ignored:
        report(place, name, "not a file of ours; ignored and kept", severity="info")
    for first, parts in listing.parts.items():
        for part, name in parts.items():
            if len(name) != PADDED_LEN + len(part) and name != segment_name(first, part):
                place.use_name(first, part, name)


def remove_temps(place: TopicDir, listing: Listing) -> None:
    """Finish a rewrite whose first rename happened; remove every other temp of our names."""
    for first, temps in listing.temps.items():
        gone = dict(temps)
        if "data" not in temps and "idx" in temps and adopt_idx_temp(place, first):
            del gone["idx"]
            listing.parts[first]["idx"] = temps["idx"]
        if gone:
            place.env.write_or_defer(partial(_unlink_all, place, list(gone.values())))


def adopt_idx_temp(place: TopicDir, first: int) -> bool:
    """Finish the second rename of a rewrite, if `.idx` disagrees with `.data` while its temp agrees."""
    data = map_file(place, place.file(first, "data"))
    if data is None or _agrees(map_file(place, place.file(first, "idx")), data):
        return False
    temp = segment_name(first, "idx") + TMP_SUFFIX
    if not _agrees(map_file(place, f"{place.path}/{temp}"), data):
        return False
    place.use_name(first, "idx", temp)
    place.env.write_or_defer(partial(_finish_rename, place, first))
    report(place, temp, "an interrupted rewrite is finished", severity="info")
    return True


def _agrees(idx: memoryview | None, data: memoryview) -> bool:
    return idx is not None and idx_agrees(idx, len(data), data) is None


def _finish_rename(place: TopicDir, first: int) -> None:
    final = f"{place.path}/{segment_name(first, 'idx')}"
    place.fs.rename(final + TMP_SUFFIX, final)
    place.fs.sync_dir(place.path)
    place.use_name(first, "idx", segment_name(first, "idx"))
    place.env.files.forget(final)


def set_aside(place: TopicDir, first: int) -> None:
    """The loser of an overlap: its files become `<name>.dup`."""
    report(place, segment_name(first, "data"), "overlaps another segment and is set aside", severity="error")
    place.env.write_or_defer(partial(_rename_to_dup, place, first))


def _rename_to_dup(place: TopicDir, first: int) -> None:
    parts: tuple[SegmentPart, ...] = ("data", "idx")
    for part in parts:
        path = place.file(first, part)
        if place.fs.exists(path):
            place.fs.rename(path, path + DUP_SUFFIX)
            place.env.files.forget(path)
    _unlink_all(place, [segment_name(first, "tags")])
    place.fs.sync_dir(place.path)


def remove_sidecars(place: TopicDir, listing: Listing, *, known: set[int]) -> None:
    """Sidecars of segments that are no more."""
    gone = [parts["tags"] for first, parts in listing.parts.items() if "tags" in parts and first not in known]
    if gone:
        place.env.write_or_defer(partial(_unlink_all, place, gone))


def _unlink_all(place: TopicDir, names: Iterable[str]) -> None:
    for name in names:
        try:
            place.fs.unlink(f"{place.path}/{name}")
        except FileNotFoundError:
            pass


def map_file(place: TopicDir, path: str) -> memoryview | None:
    """A mapping of the file; None when there is none."""
    try:
        file = place.read_fs.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.mmap()
    finally:
        file.close()


def report(place: TopicDir, name: str, message: str, *, counter: str = "", severity: Severity = "warning") -> None:
    place.env.report(
        Finding(
            topic_id=place.topic_id,
            file=f"{place.path}/{name}",
            message=f"{name} of topic {place.name!r}: {message}",
            counter=counter,
            severity=severity,
        )
    )
