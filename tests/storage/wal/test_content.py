"""Bytes that are wrong, doubled or foreign, and what a start makes of them (fault matrix C).

Rows are those of `docs/fault-matrix.md`.
"""

from __future__ import annotations

import errno
import struct
import time
from random import Random

import pytest
import xxhash
from tests.storage.wal.rig import FLAT, SHORT_PATTERNS, Log, Model, Sent, new_log

from topics.errors import StartRefused
from topics.formats.wal.bodies import Body, TopicCreateBody, encode_body, kind_of
from topics.formats.wal.frame import encode_frame
from topics.model.ops import Delete, HeadMark
from topics.model.submission import Submission
from topics.storage.wal.ends import end_of_data, valid_behind
from topics.storage.wal.log_repair import quarantined_ceilings
from topics.storage.wal.wal_files import LogPosition
from topics.testing import FOREVER, CrashPoints, SimCrash

FIELDS = {
    "frame_len": 0,
    "type": 4,
    "flags": 5,
    "topic_id": 6,
    "seq": 14,
    "ts": 22,
    "node_len": 30,
    "tag_len": 32,
    "data_len": 34,
    "data": 40,
    "xxh3": -1,
}


def flip(log: Log, number: int, at: int, bit: int = 1) -> None:
    log.disk.tamper(log.path(number), lambda data: data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])


def rotated() -> Log:
    log = new_log()
    while len(log.numbers()) < 3:
        log.send(3)
    log.send(2)
    return log


def sents_in(log: Log, number: int) -> list[Sent]:
    return [sent for sent in log.model.sent[FLAT] if log.files.get(sent.sub.file).number == number]


def keep_before(log: Log, sent: Sent) -> None:
    """From here on the model expects nothing from `sent` on."""
    log.model.sent[FLAT] = log.model.sent[FLAT][: log.model.sent[FLAT].index(sent)]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("count", [1, 2])
def test_a_flip_in_any_field_of_the_last_frame_tears_off_its_submission(field: str, count: int) -> None:  # row 40
    log = new_log()
    log.send(2)
    last = log.send(count)[0]
    frame_size = last.sub.size // count
    frame_at = last.sub.offset + last.sub.size - frame_size
    at = FIELDS[field]
    flip(log, 1, frame_at + (at if at >= 0 else frame_size + at))
    keep_before(log, last)
    after = log.crash().twice()
    assert after.group.position.off == last.sub.offset
    assert not after.quarantine()


def test_a_flip_in_the_middle_of_the_last_file_sets_the_rest_aside() -> None:  # row 41
    log = new_log()
    log.send(2)
    bad = log.send(1)[0]
    log.send(3)
    flip(log, 1, bad.sub.offset + 45)
    cut = log.disk.contents(log.path(1))[bad.sub.offset :].rstrip(b"\0")
    keep_before(log, bad)
    after = log.crash().restart().checked()
    end = after.scans[FLAT].end
    assert (end.kind, end.number, end.offset, end.frames) == ("hole", 1, bad.sub.offset, 3)
    assert end.highest == {1: 6}
    copy = f"data/wal/quarantine/flat/wal-0000000000000001.log.at-{bad.sub.offset}"
    assert after.disk.contents(copy).rstrip(b"\0") == cut
    assert after.next_seq[FLAT] == 7
    assert after.kill().twice().next_seq[FLAT] == 7


def test_a_flip_in_a_rotated_file_is_damage_and_all_later_files_are_set_aside() -> None:  # row 42
    log = rotated()
    first, second, third = log.numbers()
    bad = sents_in(log, second)[1]
    flip(log, second, bad.sub.offset + 45)
    highest = log.next_seq[FLAT] - 1
    keep_before(log, bad)
    after = log.crash().restart().checked()
    end = after.scans[FLAT].end
    assert (end.kind, end.number, end.offset) == ("damage", second, bad.sub.offset)
    assert end.highest == {1: highest}
    assert after.numbers() == [first, second]
    assert len([name for name in after.quarantine() if not name.endswith(".json")]) == 2
    assert f"wal-{third:016d}.log.at-0" in after.quarantine()
    after.send(1)
    assert after.crash().twice().next_seq[FLAT] == highest + 2


def test_with_refuse_damage_stops_the_start_and_changes_no_byte() -> None:  # row 43
    log = rotated()
    bad = sents_in(log, log.numbers()[0])[1]
    flip(log, 1, bad.sub.offset + 45)
    log.refuse = True
    before = log.dump()
    with pytest.raises(StartRefused, match="TOPICS_WAL_DAMAGE=quarantine"):
        log.crash().restart()
    assert Log(log.disk.reboot()).dump() == before


def test_setting_aside_without_space_stops_the_start_and_the_next_one_does_it() -> None:  # row 44
    log = rotated()
    bad = sents_in(log, log.numbers()[1])[1]
    flip(log, log.numbers()[1], bad.sub.offset + 45)
    keep_before(log, bad)
    log.crash()
    for kind in ("create", "pwrite", "fsync", "rename", "sync_dir"):
        attempt = log.next()
        before = {path: data for path, data in attempt.dump().items() if "quarantine" not in path}
        attempt.faults.fail(kind, "*quarantine*", code=errno.ENOSPC, times=FOREVER)
        with pytest.raises(OSError):
            attempt.start()
        now = {path: data for path, data in attempt.dump().items() if "quarantine" not in path}
        assert now == before, kind
        log = attempt.kill()
    log.twice()


@pytest.mark.parametrize("key", ["", "shard-01"])
@pytest.mark.parametrize("case", ["hole", "damage"])
def test_a_crash_at_any_call_of_setting_aside_loses_nothing_twice(case: str, key: str) -> None:  # row 44
    log = new_log(shards=2 if key else 1)
    while len(log.numbers(key)) < 3:
        log.send(3, key=key)
    log.send(2, 1, key=key)
    number = log.numbers(key)[-1 if case == "hole" else 1]
    bad = next(sent for sent in log.model.sent[key] if log.files.get(sent.sub.file).number == number)
    at = bad.sub.offset + 45
    log.disk.tamper(log.path(number, key), lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    highest = log.next_seq[key] - 1
    log.model.sent[key] = model = log.model.sent[key][: log.model.sent[key].index(bad)]
    log.crash()
    attempt = log.next()
    points = CrashPoints(attempt.disk)
    attempt.faults.hook = points.before
    attempt.start()
    points.end()
    place = attempt.data.quarantine(key)
    aside = {name: attempt.disk.contents(f"{place}/{name}") for name in attempt.quarantine(key) if ".json" not in name}
    states = list(points.states(rng=Random(5), patterns=SHORT_PATTERNS))
    assert len(states) > 60
    for state in states:
        after = Log(state.disk, Model({key: [*model]}), shards=log.shards)
        after.killed = False
        after.start().checked()
        assert after.next_seq[key] == highest + 1, state
        before = after.dump()
        again = after.crash().restart().checked()
        assert again.dump() == before, state
        for name, data in aside.items():
            assert again.disk.contents(f"{place}/{name}") == data, state
        again.send(2, key=key)
        again.crash().restart().checked()


def test_ceilings_delete_bounds_and_topic_ids_behind_a_hole_count_as_used() -> None:
    log = new_log()
    log.send(1)
    bad = log.send(1)[0]
    bodies: list[tuple[int, Body]] = [
        (1, HeadMark(ceiling=600)),
        (2, HeadMark(ceiling=5, resume_at=41)),
        (3, Delete(bound_head=9, reason="api")),
        (4, Delete(seqs=(3, 7), reason="ack")),
        (5, TopicCreateBody(name="t", epoch=1, config={}, created_ts=5)),
    ]
    frames = [encode_frame(kind_of(body), ts=5, topic_id=id, data=encode_body(body)) for id, body in bodies]
    log.group.write([Submission([frame], len(frame), 1) for frame in frames])
    flip(log, 1, bad.sub.offset + 45)
    keep_before(log, bad)
    after = log.kill().restart().checked()
    assert after.scans[FLAT].end.highest == {1: 600, 2: 40, 3: 8, 4: 7, 5: 0}
    assert quarantined_ceilings(after.fs, after.data) == {1: 600, 2: 40, 3: 8, 4: 7, 5: 0}


def test_a_note_that_rotted_is_reported_and_does_not_stop_a_start(caplog: pytest.LogCaptureFixture) -> None:
    log = new_log()
    log.send(1)
    bad = log.send(1)[0]
    log.send(1)
    flip(log, 1, bad.sub.offset + 45)
    keep_before(log, bad)
    log = log.crash().restart().checked()
    note = next(name for name in log.quarantine() if name.endswith(".json"))
    log.disk.tamper(f"data/wal/quarantine/flat/{note}", lambda data: data[:-5])
    log.crash().restart().checked()
    assert "cannot be read" in caplog.text


def test_a_second_hole_at_the_same_place_does_not_overwrite_the_first() -> None:
    log = new_log()
    log.send(1)
    for text in ("one", "two"):
        bad = log.send(1, size=len(text) * 5)[0]
        log.send(2, size=len(text) * 5)
        flip(log, 1, bad.sub.offset + 45, bit=2 if text == "one" else 4)
        keep_before(log, bad)
        log = log.crash().restart().checked()
    copies = [name for name in log.quarantine() if ".json" not in name]
    assert len(copies) == 2
    assert len({log.disk.contents(f"data/wal/quarantine/flat/{name}") for name in copies}) == 2


@pytest.mark.parametrize("frame_len", [0xFFFFFFFF, 67108865, 41, 1])
def test_an_impossible_length_is_a_bad_frame_and_costs_no_memory(frame_len: int) -> None:  # row 45
    log = new_log()
    log.send(2)
    tail = log.group.position.off
    log.disk.tamper(
        log.path(1), lambda data: data[:tail] + struct.pack("<I", frame_len) + b"\x07" * 60 + data[tail + 64 :]
    )
    after = log.crash().twice()
    assert after.group.position.off == tail
    assert after.disk.stat_len(log.path(1)) == log.file_bytes


def sealed(body: bytes) -> bytes:
    """A frame around checksummed bytes, right in length and checksum."""
    return struct.pack("<I", len(body) + 8) + body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))


def head(kind: int = 1, flags: int = 0, node_len: int = 0, tag_len: int = 0, data_len: int = 7) -> bytes:
    return struct.pack("<BBQQQHHI", kind, flags, 1, 9, 5, node_len, tag_len, data_len)


BAD_FRAMES = {
    "type 0": sealed(head(kind=0) + b'{"d":1}'),
    "type 12": sealed(head(kind=12) + b'{"d":1}'),
    "reserved flag": sealed(head(flags=0x10) + b'{"d":1}'),
    "lengths do not add up": sealed(head(data_len=6) + b'{"d":1}'),
    "tag without its flag": sealed(head(tag_len=1) + b'x{"d":1}'),
    "node is no UTF-8": sealed(head(flags=2, node_len=1) + b'\xff{"d":1}'),
    "tag is no UTF-8": sealed(head(flags=1, tag_len=2) + b'\xc3\x28{"d":1}'),
    "payload is no blob": sealed(head(data_len=7) + b"[1,2,3]"),
    "body is no msgpack": encode_frame(2, ts=5, topic_id=1, data=b"\xc1"),
    "body misses a field": encode_frame(11, ts=5, topic_id=1, data=b"\x80"),
}


@pytest.mark.parametrize("case", BAD_FRAMES)
def test_a_frame_with_a_good_checksum_and_bad_content_ends_the_log(case: str) -> None:  # row 46
    log = new_log()
    log.send(2)
    tail, frame = log.group.position.off, BAD_FRAMES[case]
    log.disk.tamper(log.path(1), lambda data: data[:tail] + frame + data[tail + len(frame) :])
    after = log.crash().twice()
    assert after.group.position.off == tail
    assert not after.quarantine()


def test_the_frames_of_a_file_present_twice_are_given_out_twice_for_replay_to_skip() -> None:  # row 48
    log = new_log()
    sent = log.send(3)[0]
    data = log.disk.contents(log.path(1))
    log.disk.plant(log.path(5), data)
    after = log.crash().restart()
    assert after.found() == [sent.data, sent.data]
    assert any("was written as file 1" in notice for notice in after.scans[FLAT].notices)


def test_flips_in_front_of_the_recorded_position_have_no_effect() -> None:  # row 50
    log = new_log()
    log.send(2)
    sent = log.send(1)[0]
    position = log.group.position
    later = log.send(3)[0]
    for at in range(0, sent.sub.offset + sent.sub.size, 7):
        disk = log.disk.clone()
        after = Log(disk, starts={FLAT: position}, watched=False)
        flip(after, 1, at)
        after.start()
        assert after.found() == [later.data], at
        assert after.scans[FLAT].end.kind == "clean"
        after.send(1, 2)
        # Whatever the flip did to the numbering, the next start understands it.
        again = after.crash().restart()
        assert len(again.found()) == 3, at
        assert again.scans[FLAT].end.kind == "clean"


def test_flips_in_front_of_the_recorded_position_do_not_break_the_numbering_of_later_files() -> None:
    log = rotated()
    first, second, third = log.numbers()
    in_second = sents_in(log, second)
    position = LogPosition(second, in_second[2].sub.offset)
    wanted = [sent.data for sent in log.model.sent[FLAT] if sent.sub.end_lsn >= in_second[2].sub.end_lsn]
    for at in (0, 2, 5, 9, in_second[0].sub.offset, in_second[1].sub.offset + 1):
        after = Log(log.disk.clone(), starts={FLAT: position}, watched=False)
        flip(after, second, at)
        flip(after, first, 50)
        after.start()
        assert after.found() == wanted
        assert (after.scans[FLAT].end.kind, after.numbers()) == ("clean", [first, second, third])


def test_an_unreadable_file_stops_the_start_and_nothing_is_cut() -> None:  # row 51
    log = new_log()
    log.send(2)
    log.write(*log.make(3, durable=False))
    log.crash("keep_prefix_torn")
    for at in range(1, 4):
        attempt = log.next()
        before = attempt.dump()
        attempt.faults.fail("pread", "*/wal-*.log", at=at)
        if not _fails(attempt):
            break
        assert attempt.dump() == before
        log = attempt.kill()
    else:
        at = 4
    assert at > 2
    log.restart().checked()


def _fails(attempt: Log) -> bool:
    try:
        attempt.start()
    except OSError as error:
        assert error.errno == errno.EIO
        return True
    return False


def test_random_bytes_behind_the_log_never_become_records() -> None:  # row 52
    rng = Random(11)
    log = new_log()
    log.send(2)
    tail = log.group.position.off
    for _ in range(150):
        noise = rng.randbytes(rng.randrange(1, 600))
        after = Log(log.disk.clone(), Model({FLAT: [*log.model.sent[FLAT]]}))
        after.disk.tamper(log.path(1), lambda data, noise=noise: data[:tail] + noise + data[tail + len(noise) :])  # type: ignore[misc]
        after.start().checked()
        assert after.group.position.off == tail


def test_the_search_behind_a_bad_frame_is_linear_even_on_bytes_made_to_make_it_slow() -> None:
    # Headers that claim all the rest of the file, every 38 bytes: hashing each of them whole would be quadratic.
    size = 4 << 20
    made = bytearray()
    while len(made) < size:
        rest = size - len(made)
        if rest < 100:
            made += b"\xff" * rest
            break
        made += struct.pack("<I", rest - 4) + struct.pack("<BBQQQHHI", 1, 0, 1, 1, 1, 0, 0, rest - 46)
    began = time.perf_counter()
    behind = valid_behind(bytes(made), 0)
    assert time.perf_counter() - began < 5.0
    assert behind.exhausted
    assert not behind.stretches


def test_the_end_of_data_is_found_from_behind() -> None:
    for n in (0, 1, 5, 1 << 20, (1 << 20) + 1, 3 << 20):
        buffer = bytes(n) + b"x" + bytes(2_500_000)
        assert end_of_data(buffer, 0) == n + 1
        assert end_of_data(buffer, n + 1) == n + 1
    assert end_of_data(bytes(100), 7) == 7


def test_a_crash_is_no_error_the_code_handles() -> None:
    log = new_log()
    log.faults.crash("pwrite", "*/wal-*.log")
    with pytest.raises(SimCrash):
        log.send(1)
    assert log.group.read_only is None
