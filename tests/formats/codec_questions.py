"""Questions that both kinds of codec are asked: honest ones, and ones whose lengths, offsets and headers lie.

`ask(seed, codec)` draws one question and gives the answer, or the refusal, as plain values. The seed decides
everything, so that two codecs can be held against each other, and a fault found by fuzzing comes again.
"""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import xxhash

from topics.errors import Corruption

SCRAPS = (
    b"1",
    b'"x"',
    b'{"a":1}',
    b'{"a":1,"m":2}',
    b'"\\",\\"m\\":1"',
    b"[[{},[]]]",
    b',"m":',
    b'"',
    b"\\",
    b"{",
    b"}",
    b"\xff",
)
NAMES = (
    None,
    b"",
    b"n1",
    b"tenant:42",
    "ö€𐍈".encode(),
    b"\xed\xa0\x80",
    b"\xc3",
    b"\xf4\x90\x80\x80",
    b"\xe0\x9f\x80",
    b'\x00\x07\x08\t\n\x0b\x0c\r\x1f"\\/\x7f',
)
EXTREMES = (0, 1, 4, 37, 38, 41, 42, 45, 46, 2**16 - 1, 2**26, 2**31 - 1, 2**32 - 1)
WANTS: tuple[frozenset[str], ...] = (
    frozenset(),
    frozenset({"node"}),
    frozenset({"data"}),
    frozenset({"tag", "meta"}),
    frozenset({"node", "tag", "data", "meta"}),
)


class Codec(NamedTuple):
    """One kind of all modules."""

    log: Any
    segment: Any
    render: Any


def ask(seed: int, codec: Codec) -> object:
    rng = random.Random(seed)
    question = rng.choice(QUESTIONS)
    try:
        return question.__name__, _plain(question(rng, codec))
    except (ValueError, IndexError, Corruption, OverflowError, struct.error) as error:
        return (
            question.__name__,
            "refused",
            OverflowError if isinstance(error, struct.error) else type(error),
            _text(error),
        )


def _text(error: Exception) -> str:
    """What is wrong with the bytes is told alike; a caller's mistake is refused in one's own words."""
    return str(error) if isinstance(error, Corruption) else ""


def _plain(answer: Any) -> Any:
    if isinstance(answer, np.ndarray):
        return answer.dtype.str, answer.tolist()
    if isinstance(answer, array):
        return answer.typecode, answer.tolist()
    return (
        type(answer)(map(_plain, answer))
        if type(answer) in (list, tuple)
        else tuple(answer)
        if isinstance(answer, tuple)
        else answer
    )


# --- what is asked about ----------------------------------------------------------------------------------------------


def _blob(rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(12))
    data = b"".join(rng.choices(SCRAPS, k=rng.randrange(1, 5))) * rng.choice((1, 1, 1, 30))
    return b'{"d":%b}' % data if rng.random() < 0.6 else b'{"d":%b,"m":%b}' % (data, rng.choice(SCRAPS))


def _number(rng: random.Random) -> int:
    return rng.choice((rng.randrange(300), rng.randrange(2**64)))


def _appends(rng: random.Random) -> dict[str, Any]:
    count = rng.choice((0, 1, 1, 2, 7, 40))
    datas = [_blob(rng) for _ in range(count)]
    names: list[Any] = [rng.choices(NAMES, k=count) for _ in range(2)]
    nodes: Any = rng.choice((None, rng.choice(NAMES), names[0]))
    times = [_number(rng) for _ in range(count)]
    ts: Any = rng.choice((_number(rng), times, array("Q", times)))
    asked = {
        "topic_id": _number(rng),
        "first_seq": rng.choice((1, 2**33, 2**64 - 50)),
        "ts": ts,
        "datas": datas,
        "nodes": nodes,
        "tags": rng.choice((None, names[1])),
        "durable": rng.random() < 0.5,
        "more_after": rng.random() < 0.2,
        "runs": None if rng.random() < 0.7 else _runs(rng, count),
    }
    if rng.random() < 0.05:
        wrong = rng.choice(("nodes", "tags", "ts"))
        asked[wrong] = [1, 2, 3] if wrong == "ts" else [None, b"", b"x"]
    if rng.random() < 0.02:
        asked["datas"] = [bytes(2**16)] if count == 1 else datas
        asked["nodes"] = bytes(2**16)
    return asked


def _runs(rng: random.Random, count: int) -> list[int]:
    if rng.random() < 0.1:
        return [rng.randrange(-1, 4) for _ in range(3)]
    ends = sorted({rng.randrange(1, count + 1) for _ in range(3)} | {count}) if count else []
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def _log(rng: random.Random) -> bytes:
    """Frames, some of which lie under a good checksum, then damage without one."""
    content = bytearray()
    for _ in range(rng.randrange(8)):
        node, tag, data = rng.choice(NAMES) or b"", rng.choice(NAMES) or b"", _blob(rng)
        fields = [rng.choice((1, 1, 1, 8, 11)), 3, 7, _number(rng), _number(rng), len(node), len(tag), len(data)]
        if rng.random() < 0.2:
            field = rng.randrange(8)
            fields[field] = rng.choice(EXTREMES) % (256, 256, 2**64, 2**64, 2**64, 2**16, 2**16, 2**32)[field]
        body = struct.pack("<BBQQQHHI", *fields) + node + tag + data
        content += struct.pack("<I", len(body) + 8) + body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))
    return _damaged(rng, content)


def _damaged(rng: random.Random, content: bytearray) -> bytes:
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        at = rng.randrange(len(content) + 1)
        fault = rng.randrange(5)
        if fault == 0 and at < len(content):
            content[at] ^= 1 << rng.randrange(8)
        elif fault == 1:
            del content[at:]
        elif fault == 2:
            content[at:at] = rng.randbytes(rng.randrange(9))
        elif fault == 3 and at + 4 <= len(content):
            content[at : at + 4] = struct.pack("<I", rng.choice(EXTREMES))
        elif fault == 4:
            content += bytes(rng.randrange(64))
    return bytes(content)


def _segment(rng: random.Random) -> tuple[bytes, np.ndarray[Any, Any]]:
    """Segment frames and their entries, either of which may lie."""
    content, entries = bytearray(), bytearray()
    for slot in range(rng.randrange(12)):
        node, tag, data = rng.choice(NAMES) or b"", rng.choice(NAMES) or b"", _blob(rng)
        flags, ts = rng.choice((3, 3, 3, 0, 255)), rng.randrange(9)
        fields = [flags, 1 + slot, ts, len(node), len(tag), len(data)]
        if rng.random() < 0.2:
            field = rng.randrange(6)
            fields[field] = rng.choice(EXTREMES) % (256, 2**64, 2**64, 2**16, 2**16, 2**32)[field]
        body = struct.pack("<BQQHHI", *fields) + node + tag + data
        frame = struct.pack("<I", len(body) + 9) + body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))
        frame += bytes((rng.choice((0, 0, 0, 0xD5)),))
        place = [len(content), len(frame), ts, flags & rng.choice((3, 3, 3, 7))]
        if rng.random() < 0.2:
            field = rng.randrange(4)
            place[field] = rng.choice(EXTREMES) % (2**32, 2**32, 2**64, 256)[field]
        entries += struct.pack("<IIQB3x", *place)
        content += frame
    return _damaged(rng, content), np.frombuffer(bytes(entries), np.uint8)


def _places(rng: random.Random, size: int, good: tuple[Any, Any]) -> tuple[list[int], list[int]]:
    """Offsets and lengths that are good, or overlap, or lie outside."""
    offsets, lengths = list(map(int, good[0])), list(map(int, good[1]))
    for _ in range(rng.choice((0, 0, 1, 4))):
        offsets.append(rng.choice((-1, 0, rng.randrange(size + 2), 2**62, -(2**63))))
        lengths.append(rng.choice((-1, 0, 5, 45, 46, 80, rng.randrange(size + 2), 2**62, 2**63 - 1)))
    if rng.random() < 0.05:
        lengths.append(1)
    return offsets, lengths


# --- the questions ----------------------------------------------------------------------------------------------------


def encode(rng: random.Random, codec: Codec) -> object:
    return codec.log.encode_appends(**_appends(rng))


def scan_log(rng: random.Random, codec: Codec) -> object:
    content = _log(rng)
    start = rng.choice((0, 0, 0, -1, rng.randrange(len(content) + 1), len(content) + 1))
    limit = rng.choice((len(content), len(content), rng.randrange(len(content) + 1), len(content) + 1))
    return codec.log.scan_wal_frames(memoryview(content), start, limit, rng.random() < 0.7)


def log_to_segment(rng: random.Random, codec: Codec) -> object:
    content = _log(rng)
    verify = rng.random() < 0.7
    found = codec.log.scan_wal_frames(content, 0, len(content), verify)
    offsets, lengths = _places(rng, len(content), found[:2])
    seqs = rng.choice((None, found[5].tolist(), [1] * len(offsets)))
    return codec.log.wal_to_segment(
        content, offsets, lengths, seqs=seqs, base=rng.randrange(99), verify=verify, file="f"
    )


def bodies_to_segment(rng: random.Random, codec: Codec) -> object:
    content = _log(rng)
    found = codec.log.scan_wal_frames(content, 0, len(content), False)
    offsets, _ = _places(rng, len(content), (found[0] + 14, found[1]))
    return codec.log.encode_bodies(content, offsets, rng.randbytes(len(offsets) + (rng.random() < 0.05)))


def scan_segment(rng: random.Random, codec: Codec) -> object:
    content, _ = _segment(rng)
    start = rng.choice((0, 0, 0, -1, rng.randrange(len(content) + 1), len(content) + 1))
    return codec.segment.scan_segment_frames(content, start, rng.choice((0, 1, 3, 2**62)), rng.random() < 0.7)


def decode_entries(rng: random.Random, codec: Codec) -> object:
    content, entries = _segment(rng)
    count = len(entries) // 20
    slots = sorted(rng.sample(range(count), rng.randrange(count + 1)))
    asked = rng.choice((None, None, slots, [*slots, rng.choice((-1, count, 2**62))]))
    first_seq, base = rng.choice((1, 1, 1, 2)), rng.choice((0, 0, 0, 5))
    return codec.segment.decode_entries(
        content, entries, asked, first_seq, base, rng.choice(WANTS), rng.random() < 0.7, rng.random() < 0.3
    )


def live_bodies(rng: random.Random, codec: Codec) -> object:
    content, entries = _segment(rng)
    count = len(entries) // 20
    lo, hi = sorted(rng.randrange(count + 1) for _ in range(2))
    slots = sorted(rng.sample(range(count), rng.randrange(count + 1)))
    asked = rng.choice((range(lo, hi), range(lo, hi, 2), np.array(slots, np.int64), slots, range(lo, hi + 20), [-1]))
    return codec.segment.live_bodies(content, entries, asked, rng.choice((1, 1, 1, 2)))


def decode_at(rng: random.Random, codec: Codec) -> object:
    content, _ = _segment(rng)
    found = codec.segment.scan_segment_frames(content, 0, 2**62, False)
    offsets, lengths = _places(rng, len(content), found[:2])
    return codec.segment.decode_at(content, offsets, lengths, rng.choice(WANTS), rng.random() < 0.7, rng.random() < 0.3)


def texts(rng: random.Random, codec: Codec) -> object:
    content = b"".join(_blob(rng) for _ in range(rng.randrange(6)))
    offsets, lengths = _places(rng, len(content), ([0], [len(content)]))
    return rng.choice((codec.segment.meta_lengths, codec.segment.hash_slices, codec.segment.gather_texts))(
        content, offsets, lengths
    )


def metas(rng: random.Random, codec: Codec) -> object:
    stored = [_blob(rng) for _ in range(rng.randrange(9))]
    lengths = np.array([len(one) for one in stored], np.int64)
    return codec.segment.meta_lengths(b"".join(stored), np.cumsum(lengths) - lengths, lengths)


def render(rng: random.Random, codec: Codec) -> object:
    content = _log(rng)
    found = codec.log.scan_wal_frames(content, 0, len(content), False)
    offsets, _ = _places(rng, len(content), (found[0] + 14, found[1]))
    small = array("I", [at % 2**32 for at in offsets])
    places = rng.choice((offsets, array("q", offsets), np.array(offsets, np.int64), small))
    flags = rng.randbytes(len(offsets) + (rng.random() < 0.05))
    return codec.render.render_records(content, places, flags, *(rng.random() < 0.7 for _ in range(3)))


QUESTIONS: tuple[Callable[[random.Random, Codec], object], ...] = (
    encode,
    render,
    scan_log,
    log_to_segment,
    bodies_to_segment,
    scan_segment,
    decode_entries,
    decode_at,
    live_bodies,
    texts,
    metas,
)
