"""Repair from the log and from the cold tier."""

from __future__ import annotations

from functools import partial

import pytest
from tests.storage.segments.lab import DIR, TOPIC, Lab, crashes, data_path, flip_bit, idx_path, new_lab

from topics.errors import CorruptSegment
from topics.formats.wal.frame import encode_appends
from topics.storage.segments.loading.segment_repair import repair_segment
from topics.storage.wal.lookup import find_in_wal
from topics.storage.wal.wal_files import WalFiles
from topics.testing import SimFs


def wal_with(*runs: tuple[int, int, int]) -> WalFiles:
    """A log of `(topic id, first seq, count)` submissions, one file each."""
    fs, files = SimFs(), WalFiles()
    for number, (topic_id, first, count) in enumerate(runs):
        made = encode_appends(topic_id=topic_id, first_seq=first, ts=9, datas=[b'{"d":1}'] * count, durable=False)
        fs.plant(f"wal/{number}", made.buffer + bytes(100))
        path = f"wal/{number}"
        files.add(key="", number=number + 1, path=path, file=fs.open(path))
    return files


def test_frames_are_found_by_topic_and_seq_in_every_file() -> None:
    files = wal_with((1, 1, 5), (2, 1, 5), (1, 6, 5))
    found = find_in_wal(files, 1, [2, 7, 99])
    assert sorted(found) == [2, 7]
    assert (
        found[7]
        == encode_appends(topic_id=1, first_seq=6, ts=9, datas=[b'{"d":1}'] * 5, durable=False).buffer[53 : 2 * 53]
    )
    assert find_in_wal(files, 3, [1]) == {}
    files.close()


def test_damaged_log_frames_are_not_found() -> None:
    fs, files = SimFs(), WalFiles()
    made = encode_appends(topic_id=1, first_seq=1, ts=9, datas=[b'{"d":1}'] * 3, durable=False)
    fs.plant("wal/0", flip_bit(made.offsets[1] + 40)(made.buffer))
    files.add(key="", number=1, path="wal/0", file=fs.open("wal/0"))
    assert sorted(find_in_wal(files, 1, [1, 2, 3])) == [1]
    files.close()


def damaged(lab: Lab | None = None, *, seqs: tuple[int, ...] = (2, 4)) -> Lab:
    """Sealed 1..5 with bad frames; the log still has everything."""
    lab = (lab or new_lab()).append(5, tag="a").append(2).checkpoint().snapshot()
    idx = lab.disk.contents(idx_path(1))
    for seq in seqs:
        at = int.from_bytes(idx[(seq - 1) * 20 :][:4], "little")
        lab.tamper(data_path(1), flip_bit(at + 36))
    return lab


def test_a_crash_at_every_call_of_a_repair_loses_no_good_record() -> None:
    def act(lab: Lab) -> None:
        assert lab.served() == lab.log.live()  # reading finds the damage and repairs it

    for state, lab in crashes(damaged, act):
        assert lab.served() == lab.log.live(), state
        lab.checked()


def test_a_repair_that_cannot_be_written_changes_nothing_and_is_tried_again() -> None:
    lab = damaged().restart()
    before = lab.files()
    lab.faults.fail("fsync", "*.idx.tmp")
    with pytest.raises(CorruptSegment):
        lab.read(2)
    assert lab.files() == before
    assert lab.served() == lab.log.live()
    lab.checked()


def test_half_a_repair_is_none() -> None:
    lab = damaged().restart()
    before = lab.files()

    def only_two(topic_id: int, seqs: object) -> dict[int, bytes]:
        return {2: lab.log.records[2].frame()}

    assert not repair_segment(lab.segment(1), only_two, [1, 3])
    assert lab.files() == before


def test_a_repaired_segment_keeps_its_deletes() -> None:
    lab = damaged(seqs=()).delete(3).snapshot()
    lab = lab.tamper(data_path(1), flip_bit(36)).restart()
    assert lab.served() == lab.log.live()
    lab.trim_wal().power_cut().checked()
    assert f"{DIR}/seg-0000000000000001.data" in lab.disk.dump()


def test_the_log_lookup_fits_the_repair() -> None:
    lab = damaged().restart()
    fs, files = SimFs(), WalFiles()
    fs.plant("wal/0", b"".join(record.frame() for record in lab.log.records.values()))
    files.add(key="", number=1, path="wal/0", file=fs.open("wal/0"))
    assert repair_segment(lab.segment(1), partial(find_in_wal, files), [1, 3])
    assert lab.served() == lab.log.live()
    assert find_in_wal(files, TOPIC, [2])[2] == lab.log.records[2].frame()
    files.close()
