"""Fault matrix 52: whatever bytes a decoder gets, it answers or raises its declared error, fast and in little memory.

A million buffers each is for long runs (`make sim`); here every decoder gets some thousands from a fixed seed.
"""

import os
import random
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from tests.formats.samples import TS, golden_bytes, hostile_headers

from topics.errors import Corruption, UnsupportedVersion
from topics.formats.file_names import parse_current
from topics.formats.segments import decode_columns, encode_segment_frames, rebuild_idx, scan_segment
from topics.formats.segments.idx import idx_agrees, read_idx
from topics.formats.segments.sidecar import TagSidecar, sidecar_matches
from topics.formats.snapshot import decode_snapshot, wrap_body
from topics.formats.wal import find_next_valid, scan_behind, scan_wal
from topics.formats.wal.blob import accounted_sizes, blob, meta_lengths
from topics.formats.wal.bodies import decode_body
from topics.formats.wal.frame import encode_frame

BUFFERS = 1_000_000 if "SIM_SECONDS" in os.environ else 3_000
MIB = 1 << 20
SIZE = 1 << 18
Decoder = Callable[[bytes], object]


def any_body(content: bytes) -> object:
    return decode_body(2 + len(content) % 10, content)


def idx_and_data(content: bytes) -> object:
    half = len(content) // 2
    idx, data = content[:half], content[half:]
    return idx_agrees(idx, len(data), data), decode_columns(data, read_idx(idx), first_seq=1)


def unverified(content: bytes) -> object:
    half = len(content) // 2
    return decode_columns(content[half:], read_idx(content[:half]), first_seq=1, verify=False, include_dead=True)


def sidecar(content: bytes) -> object:
    reader = TagSidecar(content)
    return sidecar_matches(content, count=reader.count, data_len=reader.data_len)


def blob_columns(content: bytes) -> object:
    starts = np.arange(0, len(content), 7, dtype=np.int64)
    lengths = np.minimum(20, len(content) - starts)
    return meta_lengths(content, starts, lengths), accounted_sizes(content, starts[::3], lengths[::3])


DECODERS: dict[str, Decoder] = {
    "scan_wal": scan_wal,
    "scan_wal_unverified": lambda content: scan_wal(content, verify=False),
    "find_next_valid": lambda content: find_next_valid(content, 0),
    "scan_behind": lambda content: scan_behind(content, 1),
    "scan_segment": scan_segment,
    "scan_segment_unverified": lambda content: scan_segment(content, verify=False),
    "rebuild_idx": lambda content: rebuild_idx(content, first_seq=1),
    "rebuild_idx_counted": lambda content: rebuild_idx(content, first_seq=1, count=9, data_len=len(content) + 1),
    "decode_columns": idx_and_data,
    "decode_columns_unverified": unverified,
    "decode_body": any_body,
    "decode_snapshot": decode_snapshot,
    "decode_snapshot_body": lambda content: decode_snapshot(wrap_body(content)),
    "sidecar": sidecar,
    "blobs": blob_columns,
    "current": parse_current,
}
SAMPLES = [*golden_bytes().values(), blob(b'{"a":1,"m":2}', b"{}") * 3, b""]
SAMPLES += [content[38:-8] for content in SAMPLES[:15]]


def buffers(seed: str, count: int) -> list[bytes]:
    """Random bytes, random bytes with small numbers as lengths, and valid bytes with a few changes."""
    rng = random.Random(seed)
    return [_KINDS[i % len(_KINDS)](rng) for i in range(count)]


def _noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(200))


def _small_numbers(rng: random.Random) -> bytes:
    return bytes(rng.choice((0, 0, 0, 1, 2, 4, 8, 34, 42, 64, 0x7B, 0xD5, 0xFF)) for _ in range(rng.randrange(200)))


def _mutated(rng: random.Random) -> bytes:
    content = bytearray(rng.choice(SAMPLES) * rng.randrange(1, 3))
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(content) + 1)
        change = rng.randrange(4)
        if change == 0 and at < len(content):
            content[at] ^= 1 << rng.randrange(8)
        elif change == 1:
            del content[at : at + rng.randrange(1, 40)]
        elif change == 2:
            content[at:at] = rng.randbytes(rng.randrange(1, 9))
        else:
            content[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\4", b"\x2a\0\0\0"))
    return bytes(content)


def _resealed(rng: random.Random) -> bytes:
    """A frame whose checksum is right and whose content is anything."""
    return encode_frame(rng.randrange(1, 12), ts=TS, data=_mutated(rng), tag=rng.randbytes(3), more=rng.random() < 0.5)


_KINDS = (_noise, _small_numbers, _mutated, _resealed)


@pytest.mark.parametrize("name", sorted(DECODERS))
def test_any_bytes_give_an_answer_or_the_declared_error(name: str) -> None:
    decode = DECODERS[name]
    for content in buffers(name, BUFFERS):
        try:
            decode(content)
        except (Corruption, UnsupportedVersion) as error:
            assert name in ("decode_body", "decode_snapshot", "decode_snapshot_body", "sidecar"), error


LARGE: dict[str, bytes] = {
    "zeros": bytes(SIZE),
    "ones": b"\xff" * SIZE,
    "ramp": bytes(range(256)) * (SIZE // 256),
    "lengths": b"\x2a\0\0\0" * (SIZE // 4),
    "braces": b'{"d":' * (SIZE // 5),
    "marks": b',"m":' * (SIZE // 5),
    "headers": hostile_headers(SIZE),
    "tiny_frames": encode_frame(1, ts=TS, data=blob(b"1")) * 5_000,
    "tiny_records": encode_segment_frames(seqs=range(1, 5_001), ts=[TS] * 5_000, datas=[blob(b"1")] * 5_000).buffer,
    "same_records": encode_segment_frames(seqs=[5], ts=[TS], datas=[blob(b"1")]).buffer * 5_000,
    "holes": (encode_frame(1, ts=TS, data=blob(b"1")) + b"\x01") * 500,
    "record_holes": b"".join(
        encode_segment_frames(seqs=[seq], ts=[TS], datas=[blob(b"1")]).buffer + b"\x01" for seq in range(1, 501)
    ),
    "nested": b"\x91" * SIZE,
    "huge_map": b"\xdf\xff\xff\xff\xff" * (SIZE // 5),
}


@pytest.mark.parametrize("content", sorted(LARGE))
@pytest.mark.parametrize("name", sorted(DECODERS))
def test_large_hostile_input_costs_bounded_time_and_memory(name: str, content: str) -> None:
    raw = LARGE[content]
    tracemalloc.start()
    began = time.process_time()
    try:
        DECODERS[name](raw)
    except (Corruption, UnsupportedVersion):
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    # Generous, and far below what one quadratic step or one believed length would cost.
    assert time.process_time() - began < 20
    assert peak < 24 * len(raw) + 4 * MIB
