"""Reading a log group back: which files are replayed from where, every frame as columns, and how the log ends.

Also says how much of a file is in use, and how many frames lie in a part that nobody decodes any more. Holds: nothing
is written; an I/O error is raised and never read as a torn or absent file; frames handed out are checked and belong to
whole submissions; the same files give the same answer. Called by recovery (steps 3 to 5); `log_repair` then carries out
what `GroupScan.end` says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from struct import Struct
from typing import Final

import numpy as np
from msgspec.structs import replace as replace_struct

from topics.errors import WalMissing
from topics.formats.buffers import Buffer
from topics.formats.wal import Stop, WalColumns, complete_count, complete_end, scan_wal
from topics.formats.wal.frame import FRAME_LEN_MIN, HEAD_BYTES, LEN_BYTES, OVERHEAD_BYTES, SUM_BYTES
from topics.storage.fs import ReadFile, ReadFs
from topics.storage.wal.ends import (
    CutPiece,
    EndKind,
    GroupEnd,
    end_of_data,
    has_frame_behind,
    highest_seqs,
    lengths_agree,
    synced_behind,
    valid_behind,
    whole_size,
)
from topics.storage.wal.group_scan import (
    GroupListing,
    GroupScan,
    OpenFrame,
    ScannedFile,
    complete_from_first,
    newest_layout,
    read_open_frame,
)
from topics.storage.wal.rotation import Layout
from topics.storage.wal.wal_files import LogPosition, WalFile, WalFiles

__all__ = ["GroupScan", "ScannedFile", "complete_from_first", "newest_layout", "scan_group"]

_READ_BYTES: Final = 64 << 20
_ZEROS_KEPT: Final = 64
_STREAK: Final = 16
"""Frames of one length after which more of them are expected."""
_unpack_len: Final = Struct("<I").unpack_from


def read_used(file: ReadFile) -> memoryview:
    """A file's bytes without the zeros at its end, of which a few are kept: a frame may end in zeros of its checksum.

    Most of a preallocated file may be zeros; then they are not held. The memory comes from numpy, which asks for huge
    pages: making so many small ones takes longer than the copy out of the page cache."""
    room = np.empty(file.size(), np.uint8).data
    at = 0
    while at < len(room) and (got := file.pread_into(at, room[at : at + _READ_BYTES])):
        at += got
    used = room[: min(at, end_of_data(room[:at], 0) + _ZEROS_KEPT)]
    return used.toreadonly() if 2 * len(used) > len(room) else memoryview(bytes(used))


def count_frames(buffer: Buffer, end: int) -> tuple[int, bool]:
    """Frames in front of `end` by their length fields alone; exact if those lead to `end` itself.

    They may be damaged, as nothing in front of the recorded position matters any more; then the answer is a bound from
    above. Frames of one length mostly come in stretches, which are counted at once."""
    count, at, before, streak = 0, 0, 0, 0
    stop = min(end, len(buffer) - LEN_BYTES)
    while at < stop:
        (frame_len,) = _unpack_len(buffer, at)
        if frame_len < FRAME_LEN_MIN:
            break
        streak = streak + 1 if frame_len == before else 0
        if streak < _STREAK:
            at += LEN_BYTES + frame_len
            count += 1
        else:
            alike = _alike_from(buffer, at, stop, frame_len)
            at += alike * (LEN_BYTES + frame_len)
            count += alike
            streak = 0
        before = frame_len
    if at == end:
        return count, True
    return end // OVERHEAD_BYTES + 1, False


def _alike_from(buffer: Buffer, at: int, stop: int, frame_len: int) -> int:
    """How many frames from `at` on have this length, at least the one there."""
    step, count, looked = LEN_BYTES + frame_len, 1, 64
    most = -(-(stop - at) // step)
    while count < most:
        window = min(looked, most - count)
        lens = np.ndarray((window,), "<u4", buffer, at + count * step, (step,))
        other = np.flatnonzero(lens != frame_len)
        if len(other):
            return count + int(other[0])
        count += window
        looked *= 8
    return count


BUFFERS_KEPT_BYTES: Final = 160 << 20
"""File buffers of a group kept between the scan and the replay; the rest is read again."""
_ROW_FIELDS: Final = tuple(field.name for field in fields(WalColumns))[:10]


def scan_group(
    fs: ReadFs,
    listing: GroupListing,
    files: WalFiles,
    *,
    start: LogPosition | None = None,
    snapshot_gen: int = 0,
    salvage: bool = False,
    left_over: bool = False,
    unharmed: bool = False,
) -> GroupScan:
    """Read one group from its recorded position, or from its first file of a generation the snapshot still needs.

    `left_over`: the snapshot's layout does not write it any more. Its position is the end of all it ever held then, and
    its files may have gone. `unharmed`: neither the kernel nor the file system died since it was written, so a frame
    that was written to its last byte is as it was written."""
    scan = _Scan(fs, listing, files, start, snapshot_gen, unharmed=unharmed).run(salvage=salvage)
    if scan.ends_early and left_over:
        scan.ends_early = False
    elif scan.ends_early and start is not None and scan.end.kind != "damage":
        reason = "the log ends before this place, which was synced"
        scan.end = replace_struct(scan.end, kind="damage", number=start.file, offset=start.off, reason=reason)
    return scan


class _Scan:
    """One run of `scan_group`."""

    def __init__(
        self,
        fs: ReadFs,
        listing: GroupListing,
        files: WalFiles,
        start: LogPosition | None,
        snapshot_gen: int,
        *,
        unharmed: bool,
    ) -> None:
        self.fs = fs
        self.listing = listing
        self.table = files
        self.start = start
        self.snapshot_gen = snapshot_gen
        self.unharmed = unharmed
        self.out = GroupScan(listing)
        self.out.start = start
        self.opens: dict[int, OpenFrame | None] = {}
        self.kept_bytes = 0

    def run(self, *, salvage: bool) -> GroupScan:
        ours = self._open_ours()
        self._check_current(ours, salvage=salvage)
        pending = self._pass_over(ours)
        self._drop_unfinished(pending)
        self._scan_files(pending)
        self._name_next()
        return self.out

    # --- which files ------------------------------------------------------------------------------------------------

    def _open_ours(self) -> list[WalFile]:
        """Open every file of this group; one whose `open` frame names another group is left alone."""
        ours: list[WalFile] = []
        for number, name in self.listing.names.items():
            path = f"{self.listing.dir}/{name}"
            handle = self.fs.open(path)
            found = read_open_frame(handle)
            if found is not None and found.mark.group != self.listing.key:
                handle.close()
                self.out.notices.append(f"{path} is ignored: it belongs to group {found.mark.group!r}")
                continue
            if found is not None:
                self.out.layouts.append(Layout(found.mark.gen, found.mark.shards))
                if found.mark.first != number:
                    self.out.notices.append(f"{path} was written as file {found.mark.first}")
            self.opens[number] = found
            ours.append(self.table.add(key=self.listing.key, number=number, path=path, file=handle))
        return ours

    def _check_current(self, ours: Sequence[WalFile], *, salvage: bool) -> None:
        current, newest = self.listing.current, ours[-1].number if ours else 0
        if current is None or current <= newest:
            return
        text = f"{self.listing.dir}/CURRENT names file {current}, the newest one present is {newest}"
        if not salvage:
            raise WalMissing(f"{text}: a synced log file is gone. Restore it, or start once with TOPICS_SALVAGE=1")
        self.out.notices.append(text)

    def _pass_over(self, ours: list[WalFile]) -> list[WalFile]:
        """Split off the files in front of the replay."""
        if self.start is not None:
            first = next((i for i, file in enumerate(ours) if file.number >= self.start.file), len(ours))
        else:
            first = next((i for i, file in enumerate(ours) if not self._is_stale(file)), len(ours))
            if first:
                self.out.notices.append(
                    f"{self.listing.dir}: {first} files of an older shard layout are ignored, they were absorbed"
                )
        self.out.passed = ours[:first]
        self.out.from_first = not ours or (first == 0 and ours[0].number == 1)
        return ours[first:]

    def _is_stale(self, file: WalFile) -> bool:
        found = self.opens[file.number]
        return found is not None and found.mark.gen < self.snapshot_gen

    def _drop_unfinished(self, pending: list[WalFile]) -> None:
        """The creation of the last file was interrupted: neither its `open` frame nor any other is there."""
        if not pending or self.opens[pending[-1].number] is not None:
            return
        last = pending[-1]
        if self.start is not None and self.start.file == last.number:
            return  # a snapshot recorded a place in it, so it was complete once
        if self.listing.current == last.number:
            return  # so was a file that CURRENT names
        buffer = read_used(last.file)
        if has_frame_behind(valid_behind(buffer, 0), 0):
            return
        pending.pop()
        piece = CutPiece(last.number, last.path, 0, end_of_data(buffer, 0))
        self.out.end = GroupEnd(kind="torn", reason="open", pieces=(piece,))
        self.out.notices.append(f"{last.path} holds no frame: its creation was interrupted")

    # --- what is in them --------------------------------------------------------------------------------------------

    def _scan_files(self, pending: Sequence[WalFile]) -> None:
        if self._position_file_missing(pending):
            self._cut(pending, "damage", number=0, offset=0, reason="file missing")
            return
        for i, file in enumerate(pending):
            is_last = i + 1 == len(pending)
            buffer = read_used(file.file)
            columns, end = self._scan_file(file, buffer)
            if columns.stop is Stop.BAD or columns.end != end:  # more than zeros behind the last whole submission
                self._end_inside(pending[i:], buffer, columns, end)
                return
            if not is_last and not self._numbered(file, pending[i + 1], end):
                self._cut(pending[i + 1 :], "damage", number=file.number, offset=end, reason="numbering")
                return

    def _position_file_missing(self, pending: Sequence[WalFile]) -> bool:
        """Whether the file of the recorded position is gone although the log goes on behind it.

        A group that starts anew behind a recorded position takes the very next number (`_name_next`), which proves
        that nothing lay between."""
        if self.start is None or not pending:
            return False
        return pending[0].number > self.start.file + 1

    def _scan_file(self, file: WalFile, buffer: Buffer) -> tuple[WalColumns, int]:
        """Scan one file from where replay begins and add it to the result; gives its columns and log end."""
        start = 0
        if self.start is not None and self.start.file == file.number:
            start = self.start.off
        columns = scan_wal(buffer, min(start, len(buffer)))
        if not start and self.opens[file.number] is None:
            # Frames of a file without its `open` frame belong to no generation.
            columns = replace(_first_rows(columns, 0, 0), stop=Stop.BAD, reason="open")
        end = complete_end(columns, min(start, len(buffer)))
        good = complete_count(columns)
        counted, exact = count_frames(buffer, start)
        self._take(file, buffer, start, _first_rows(columns, good, end))
        self.out.last, self.out.tail = file, end
        self.out.frames, self.out.exact = counted + good, exact
        return columns, end

    def _take(self, file: WalFile, buffer: Buffer, start: int, columns: WalColumns) -> None:
        found = self.opens[file.number]
        if found is not None:
            self.out.last_gen = found.mark.gen
        elif not self.out.last_gen:
            self.out.last_gen = self.snapshot_gen
        keep = self.kept_bytes + len(buffer) <= BUFFERS_KEPT_BYTES
        self.kept_bytes += len(buffer) if keep else 0
        kept = buffer if keep else None
        self.out.files.append(ScannedFile(file, gen=self.out.last_gen, start=start, columns=columns, buffer=kept))

    def _numbered(self, file: WalFile, following: WalFile, end: int) -> bool:
        """Whether `following` is the next file, none missing and none cut."""
        expected = file.number + self.out.frames
        was_cut = self.start is not None and self.start.file == file.number and end < self.start.off
        if (
            self.out.exact or was_cut
        ):  # a start that found it cut has begun the next file with this number (`_name_next`)
            return following.number == expected
        # Frames in front of the recorded position could not be counted; what follows it could.
        return following.number > file.number + len(self.out.files[-1].columns)

    # --- how it ends ------------------------------------------------------------------------------------------------

    def _end_inside(self, rest: Sequence[WalFile], buffer: Buffer, columns: WalColumns, end: int) -> None:
        """The log stops inside `rest[0]`."""
        file = rest[0]
        reason = columns.reason or "incomplete submission"
        behind = valid_behind(buffer, end)
        if len(rest) > 1 or synced_behind(behind, LogPosition(file.number, end)):
            kind: EndKind = "damage"
        elif self.opens[file.number] is None or self._crosses_end(file, buffer, columns):
            kind, self.out.tail_lost = "damage", True
        elif self._rotted(buffer, columns):
            kind = "damage"
        else:
            kind = "hole" if has_frame_behind(behind, columns.end) else "torn"
        self._cut(rest, kind, number=file.number, offset=end, reason=reason)

    @staticmethod
    def _crosses_end(file: WalFile, buffer: Buffer, columns: WalColumns) -> bool:
        """Whether the bad frame was cut with its file: a writer never begins one that the file has no room for."""
        at, size = columns.end, file.file.size()
        if columns.stop is not Stop.BAD:
            return False
        if size - at < HEAD_BYTES:
            return any(buffer[at:])
        return at + whole_size(buffer, at) > size and lengths_agree(buffer, at)

    def _rotted(self, buffer: Buffer, columns: WalColumns) -> bool:
        """Whether neither the kernel nor the file system died since, and what is at the end is not the beginning of a
        frame and zeros behind it, as a write leaves it that was cut off. Then no crash made it bad."""
        size = whole_size(buffer, columns.end)
        behind = columns.end + size - SUM_BYTES if size else columns.end
        return self.unharmed and columns.stop is Stop.BAD and any(buffer[behind:])

    def _cut(self, rest: Sequence[WalFile], kind: EndKind, *, number: int, offset: int, reason: str) -> None:
        """Collect what is cut off: from `offset` on in file `number`, and all of the other files."""
        pieces: list[CutPiece] = []
        highest: dict[int, int] = {}
        frames = unread = 0
        for file in rest:
            buffer = read_used(file.file)
            start = offset if file.number == number else 0
            piece_end = end_of_data(buffer, start)
            if kind != "torn":
                piece_end = min(len(buffer), piece_end + SUM_BYTES)  # a valid frame may end in zeros of its checksum
                behind = valid_behind(buffer, start)
                frames += highest_seqs(behind, highest)
                unread += piece_end - start - sum(int(columns.length.sum()) for columns in behind.stretches)
            pieces.append(CutPiece(file.number, file.path, start, piece_end))
        self.out.end = GroupEnd(
            kind=kind,
            number=number,
            offset=offset,
            reason=reason,
            pieces=(*pieces, *self.out.end.pieces),
            frames=frames,
            unread_bytes=unread,
            highest=highest,
        )
        if self.out.files and self.out.files[-1].file.number == number and not offset:
            self._uncount_last()

    def _uncount_last(self) -> None:
        """The last file is cut at its very start, so it goes, and the one before it is the last."""
        self.out.files.pop()
        before = self.out.files[-1] if self.out.files else None
        self.out.last = before.file if before else None
        self.out.tail = before.columns.end if before else 0
        self.out.frames = len(before.columns) if before else 0
        if before is not None:
            counted, self.out.exact = count_frames(before.buffer(), before.start)
            self.out.frames += counted

    def _name_next(self) -> None:
        """A number for a new file that the next start will find to follow what is left now."""
        out, start = self.out, self.start
        if out.last is not None:
            out.next_number = out.last.number + max(1, out.frames)
        elif start is not None:
            out.next_number = start.file + 1
        elif out.passed:
            last = out.passed[-1]
            out.next_number = last.number + max(1, len(scan_wal(read_used(last.file))))
        elif out.end.pieces:
            out.next_number = out.end.pieces[0].number
        if start is not None and self._behind_end(start):
            out.beyond = True
            out.ends_early = self._ends_before(start)
            out.next_number = max(out.next_number, start.file + 1)
            out.notices.append(f"{self.listing.dir}: recorded position {tuple(start)} lies behind the end of the log")

    def _ends_before(self, start: LogPosition) -> bool:
        """Whether frames that were synced behind `start` are gone: the log stops before it, or right there, and what is
        in front of it is not what it was."""
        last = self.out.last
        return last is None or last.number < start.file or self.out.tail <= start.off

    def _behind_end(self, start: LogPosition) -> bool:
        last = self.out.last
        if last is None:
            return True
        if last.number != start.file:
            return last.number < start.file
        return not self.out.exact or self.out.tail < start.off


def _first_rows(columns: WalColumns, count: int, end: int) -> WalColumns:
    if count == len(columns):
        return columns
    rows = {name: getattr(columns, name)[:count] for name in _ROW_FIELDS}
    bodies = {row: body for row, body in columns.bodies.items() if row < count}
    return replace(columns, **rows, bodies=bodies, end=end)
