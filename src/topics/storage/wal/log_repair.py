"""Making the end of a group writable again: set aside, cut, re-allocate, `CURRENT` (`docs/spec/storage.md#sec-9-3`,
step 6).

The order is what makes it safe at every call: copies and their note are durable before `CURRENT` stops naming what they
hold, `CURRENT` before anything is cut, the cut before anything is appended. Doing it again gives the same files: a copy
that is already there is not made twice. Any failure stops the start, except that missing space for re-allocation, or
for a `CURRENT` that names an older file, only makes the group read-only.

A note (`*.json`) keeps the highest seqs among the frames set aside. They raise ceilings at every later start too, so a
crash between the cut and the first synced ceiling cannot make a seq name two records.

Opening the writers of a layout after recovery (step 8; `docs/spec/storage.md#sec-9-2` and
`docs/spec/storage.md#sec-9-5`).

A group goes on in its last file when that file belongs to the present generation and nothing forbids appending to it;
otherwise it starts a new file. Called by the runtime once per group, with the group repaired.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec

from topics.clock import Clock
from topics.errors import StartRefused
from topics.formats import file_names as names
from topics.storage.data_dir import DataDir
from topics.storage.fs import Fs, ReadFs, install, make_dirs, names_in, parent, read_file, read_full
from topics.storage.wal.ends import CutPiece, GroupEnd
from topics.storage.wal.file_scan import GroupScan
from topics.storage.wal.group import NO_SPACE, WalGroup
from topics.storage.wal.rotation import Layout, grown
from topics.storage.wal.wal_files import WalFile, WalFiles

log = logging.getLogger("topics.wal")

NOTE_SUFFIX = ".json"


class QuarantineNote(msgspec.Struct, frozen=True, kw_only=True):
    """What was set aside, for people and for the next start."""

    group: str
    kind: str
    file: str
    offset: int
    reason: str
    frames: int
    pieces: list[str]
    highest: dict[int, int]


class Repaired(msgspec.Struct, frozen=True):
    """A group whose end is clean and durable. `capacity` is 0 when there is no file to go on in."""

    capacity: int
    no_space: bool


def refuse_damage(scans: Iterable[GroupScan]) -> None:
    """For TOPICS_WAL_DAMAGE=refuse; to be called before anything is repaired."""
    for scan in scans:
        if scan.end.kind == "damage":
            place = f"file {scan.end.number} at byte {scan.end.offset}"
            raise StartRefused(
                f"the log in {scan.dir} is damaged in {place} ({scan.end.reason}). "
                "Restore the files, or start with TOPICS_WAL_DAMAGE=quarantine to go on without what follows"
            )


def repair_group(
    fs: Fs, data: DataDir, scan: GroupScan, files: WalFiles, *, file_bytes: int, anew: bool = False
) -> Repaired:
    """Carry out what the scan found; afterwards the last file ends where the log does, durably.

    `anew`: a sync may have failed under this kernel (the lock's boot line proves nothing), so bytes that read well may
    exist in memory only, and the kernel takes them for written. The last file is then copied instead of synced."""
    end = scan.end
    make_dirs(fs, scan.dir)  # it may be gone, with all that a snapshot says was in it
    if end.set_aside or any(piece.start == 0 and piece.end > 0 for piece in end.pieces):
        _set_aside(fs, data, scan)
    if end.kind != "clean":
        _report(scan, end)
    if end.pieces:
        _install_current(fs, scan)  # before anything is cut, so that it never names a file that goes
    if anew:
        _write_anew(fs, scan)
    else:
        _cut_last(fs, scan)
    _remove_whole(fs, scan, files)
    repaired = _allocate_last(scan.last, tail=scan.tail, file_bytes=file_bytes)
    if not _catch_up_current(fs, scan):
        repaired = Repaired(scan.tail, no_space=True)  # no room in this file: the next write rotates, which installs it
    fs.sync_dir(scan.dir)  # names that came or went in a process that was killed may not be durable yet
    return repaired


# --- setting aside ----------------------------------------------------------------------------------------------------


def _set_aside(fs: Fs, data: DataDir, scan: GroupScan) -> None:
    target = data.quarantine(scan.key)
    make_dirs(fs, target)
    for above in (parent(target), data.wal):  # they may be there and not durable: a killed process made them
        fs.sync_dir(above)
    copies = [_copy_piece(fs, target, piece) for piece in scan.end.pieces if piece.end > piece.start]
    note = QuarantineNote(
        group=scan.key,
        kind=scan.end.kind,
        file=scan.last.path if scan.last else "",
        offset=scan.tail,
        reason=scan.end.reason,
        frames=scan.end.frames,
        pieces=copies,
        highest=scan.end.highest,
    )
    name = names.quarantine_file_name(*_first_missing(scan.end)) + NOTE_SUFFIX
    _keep(fs, target, name, msgspec.json.format(msgspec.json.encode(note)))


def _first_missing(end: GroupEnd) -> tuple[str, int]:
    """File and offset: of the first byte that is set aside, or of the place that the log does not reach."""
    if end.pieces:
        return _base_name(end.pieces[0].path), end.pieces[0].start
    return names.wal_name(end.number), end.offset


def _copy_piece(fs: Fs, target: str, piece: CutPiece) -> str:
    file = fs.open(piece.path, "r")
    try:
        data = read_full(file, piece.start, piece.end - piece.start)
    finally:
        file.close()
    return _keep(fs, target, names.quarantine_file_name(_base_name(piece.path), piece.start), data)


def _keep(fs: Fs, target: str, name: str, data: bytes) -> str:
    """Install `data` under `name`, or under the next free variant of it if other bytes have that name."""
    present = set(fs.listdir(target))
    variant, n = name, 1
    while variant in present and read_file(fs, f"{target}/{variant}") != data:
        n += 1
        variant = f"{name}.{n}"
    # Also when the bytes are there: only an install that returned proves that they, and their name, are durable.
    install(fs, f"{target}/{variant}", data)
    return variant


def _base_name(path: str) -> str:
    return path.rpartition("/")[2]


def _report(scan: GroupScan, end: GroupEnd) -> None:
    level = {"damage": logging.ERROR, "hole": logging.WARNING}.get(end.kind, logging.INFO)
    log.log(
        level,
        "log of %s: %s in file %d at byte %d (%s), %d bytes cut off, %d valid frames among them",
        *(scan.dir, end.kind, end.number, end.offset, end.reason, end.cut_bytes, end.frames),
    )


def quarantined_ceilings(fs: ReadFs, data: DataDir) -> dict[int, int]:
    """Per topic the highest seq that was ever set aside in any group, from the notes; 0 if only its id was."""
    top = f"{data.wal}/{names.QUARANTINE_DIR}"
    highest: dict[int, int] = {}
    for directory in names_in(fs, top):
        path = f"{top}/{directory}"
        for name in names_in(fs, path):
            if NOTE_SUFFIX in name and not name.endswith(names.TMP_SUFFIX):
                _merge_note(fs, f"{path}/{name}", highest)
    return highest


def _merge_note(fs: ReadFs, path: str, highest: dict[int, int]) -> None:
    try:
        note = msgspec.json.decode(read_file(fs, path), type=QuarantineNote)
    except msgspec.MsgspecError as error:
        log.error("%s cannot be read, seqs set aside there are unknown: %s", path, error)
        return
    for topic_id, seq in note.highest.items():
        highest[topic_id] = max(seq, highest.get(topic_id, 0))


# --- cutting ----------------------------------------------------------------------------------------------------------


def _cut_last(fs: Fs, scan: GroupScan) -> None:
    """Also when nothing is to be cut: what was replayed is durable once this returned."""
    if scan.last is None:
        return
    file = fs.open(scan.last.path, "rw")
    scan.last.written_through(file)
    if file.size() > scan.tail:
        file.truncate(scan.tail)
    file.fsync()


def _write_anew(fs: Fs, scan: GroupScan) -> None:
    if scan.last is None:
        return
    entry = scan.last
    install(fs, entry.path, read_full(entry.file, 0, scan.tail))
    entry.written_through(fs.open(entry.path, "rw"))


def _remove_whole(fs: Fs, scan: GroupScan, files: WalFiles) -> None:
    """Unlink files of which nothing is left in the log."""
    gone = [piece for piece in scan.end.pieces if piece.start == 0]
    numbers = {piece.number for piece in gone}
    for entry in files.of_group(scan.key):
        if entry.number in numbers:
            files.drop(entry.index)
    for piece in gone:
        fs.unlink(piece.path)
    if gone:
        fs.sync_dir(scan.dir)


def _allocate_last(last: WalFile | None, *, tail: int, file_bytes: int) -> Repaired:
    if last is None:
        return Repaired(0, no_space=False)
    capacity, file = max(tail, grown(tail, file_bytes=file_bytes)), last.writer
    try:
        file.allocate(capacity)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        log.error("no space to allocate %s again: %s", last.path, error)
        return Repaired(tail, no_space=True)
    file.fsync()
    return Repaired(capacity, no_space=False)


def _install_current(fs: Fs, scan: GroupScan) -> None:
    """`CURRENT` names the file that survives; without one it goes, so that it never names what is gone."""
    path = f"{scan.dir}/{names.CURRENT}"
    if scan.last is not None:
        if scan.current_stale:
            fs.sync_dir(scan.dir)  # the file's own name may not be durable yet: a kill in the middle of a rotation
            install(fs, path, names.current_text(scan.last.number))
            scan.current = scan.last.number
        return
    if fs.exists(path):
        fs.unlink(path)
        fs.sync_dir(scan.dir)
        scan.current = None


def _catch_up_current(fs: Fs, scan: GroupScan) -> bool:
    """`CURRENT` of a rotation that did not get that far. False if there is no space for it, which costs nothing but
    the cross-check: the highest number counts."""
    try:
        _install_current(fs, scan)
    except OSError as error:
        names_older = scan.last is not None and (scan.current or 0) < scan.last.number
        if error.errno not in NO_SPACE or not names_older:
            raise
        log.error("no space for %s/%s: %s", scan.dir, names.CURRENT, error)
        return False
    return True


# --- leftovers --------------------------------------------------------------------------------------------------------


def remove_temps(fs: Fs, dirs: Sequence[str]) -> list[str]:
    """Remove every `*.tmp` file, `prealloc.tmp` among them, in these directories (`docs/spec/storage.md#sec-9-7`).
    Gives their paths."""
    removed: list[str] = []
    for dir in dirs:
        found = [name for name in names_in(fs, dir) if name.endswith(names.TMP_SUFFIX)]
        for name in found:
            fs.unlink(f"{dir}/{name}")
            removed.append(f"{dir}/{name}")
        if found:
            fs.sync_dir(dir)
    return removed


def log_dirs(fs: Fs, data: DataDir) -> list[str]:
    """`wal/` and the directories below it in which a crash may leave temps."""
    dirs = [data.wal]
    for name in names_in(fs, data.wal):
        path = f"{data.wal}/{name}"
        if name == names.QUARANTINE_DIR:
            dirs += [f"{path}/{below}" for below in names_in(fs, path)]
        elif names.parse_shard(name) is not None:
            dirs.append(path)
    return dirs


def open_group(
    fs: Fs,
    data: DataDir,
    key: str,
    *,
    scan: GroupScan | None,
    repaired: Repaired | None,
    layout: Layout,
    files: WalFiles,
    file_bytes: int,
    clock: Clock,
    sync_failed: Callable[[], None],
    recorded: int = 0,
) -> WalGroup:
    """The writer of group `key`. `scan` and `repaired` are None for a group that was not on disk.

    `recorded` is the highest file number that any kept snapshot has for the key. A group without files starts above
    it, else an older snapshot would take its new frames for absorbed."""
    dir = data.group(key)
    if scan is None:
        make_dirs(fs, dir)
    fs.sync_dir(parent(dir))  # it may be there and not durable: a killed process made it
    next_number = max(1, recorded + 1)
    if scan is not None:
        next_number = scan.next_number if scan.last is not None else max(scan.next_number, next_number)
    group = WalGroup(
        fs,
        key=key,
        dir=dir,
        files=files,
        layout=layout,
        file_bytes=file_bytes,
        clock=clock,
        sync_failed=sync_failed,
        next_number=next_number,
    )
    if scan is None or repaired is None or not _may_append(scan, layout) or scan.last is None:
        group.begin()
        return group
    group.resume(scan.last, tail=scan.tail, frames=scan.frames, capacity=repaired.capacity)
    if repaired.no_space:
        group.latch("no_space")
    return group


def _may_append(scan: GroupScan, layout: Layout) -> bool:
    return scan.last is not None and not scan.beyond and scan.last_gen == layout.gen
