"""Snapshot files: only a whole, undamaged file of this version is a snapshot."""

import struct
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.samples import SNAPSHOT

from topics.errors import Corruption, UnsupportedVersion
from topics.formats.snapshot import (
    HEADER_BYTES,
    GroupPosition,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
    wrap_body,
)

FILE = encode_snapshot(SNAPSHOT)


def body() -> dict[str, Any]:
    decoded = msgspec.msgpack.decode(FILE[HEADER_BYTES:])
    assert isinstance(decoded, dict)
    return decoded


def wrap(content: Any) -> bytes:
    return wrap_body(msgspec.msgpack.encode(content))


def test_a_snapshot_reads_back() -> None:
    assert decode_snapshot(FILE) == SNAPSHOT
    assert decode_snapshot(memoryview(FILE)) == SNAPSHOT


@given(st.lists(st.builds(GroupPosition, key=st.text(), file=st.integers(0, 2**64 - 1), off=st.integers(0, 2**64 - 1))))
def test_any_groups_read_back(groups: list[GroupPosition]) -> None:
    snapshot = msgspec.structs.replace(SNAPSHOT, groups=tuple(groups), topics=(), routers=(), clean=True)
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


# Fault matrix 89.
def test_every_truncation_is_corruption() -> None:
    for size in range(len(FILE)):
        with pytest.raises(Corruption):
            decode_snapshot(FILE[:size])


def test_every_bit_flip_is_corruption_or_another_version() -> None:
    for bit in range(8 * len(FILE)):
        raw = bytearray(FILE)
        raw[bit // 8] ^= 1 << bit % 8
        expected = UnsupportedVersion if 4 <= bit // 8 < 8 else Corruption
        with pytest.raises(expected):
            decode_snapshot(bytes(raw))


def test_a_trailing_byte_is_corruption() -> None:
    with pytest.raises(Corruption) as caught:
        decode_snapshot(FILE + b"\0", file="snapshot.0007.bin")
    assert (caught.value.file, caught.value.offset, caught.value.reason) == ("snapshot.0007.bin", 8, "body_len")


@pytest.mark.parametrize("version", [0, 1, 2, 4, 99])
def test_another_version_is_told_apart_from_damage(version: int) -> None:
    with pytest.raises(UnsupportedVersion, match=f"version {version}; this version reads 3"):
        decode_snapshot(FILE[:4] + struct.pack("<I", version) + FILE[8:])


def test_reserved_bytes_must_be_zero() -> None:
    with pytest.raises(Corruption, match="reserved"):
        decode_snapshot(FILE[:12] + b"\1\0\0\0" + FILE[16:])


REQUIRED = set(body())
TOPIC_REQUIRED = set(body()["topics"][0]) - {"queue", "idem"}
ROUTER_REQUIRED = set(body()["routers"][0]) - {"filter"}


@pytest.mark.parametrize("key", sorted(REQUIRED))
def test_every_field_is_required(key: str) -> None:
    with pytest.raises(Corruption):
        decode_snapshot(wrap({k: v for k, v in body().items() if k != key}))


@pytest.mark.parametrize(
    ("where", "key"),
    [("topics", k) for k in sorted(TOPIC_REQUIRED)] + [("routers", k) for k in sorted(ROUTER_REQUIRED)],
)
def test_every_field_of_topics_and_routers_is_required(where: str, key: str) -> None:
    content = body()
    del content[where][0][key]
    with pytest.raises(Corruption):
        decode_snapshot(wrap(content))


def test_queue_and_idempotency_window_are_optional() -> None:
    content = body()
    del content["topics"][0]["queue"], content["topics"][0]["idem"]
    topic = decode_snapshot(wrap(content)).topics[0]
    assert (topic.queue, topic.idem) == (None, ())


def test_an_unknown_field_is_ignored() -> None:
    assert decode_snapshot(wrap(body() | {"new": {"a": [1]}})) == SNAPSHOT


@pytest.mark.parametrize("instance", ["", "0011223344556677 8899aabbccddeeff", "g" * 32, "0" * 31, "0" * 33, 7])
def test_an_instance_is_32_hex_digits(instance: Any) -> None:
    with pytest.raises(Corruption):
        decode_snapshot(wrap(body() | {"instance": instance}))


def test_a_body_that_is_no_map_is_corruption() -> None:
    for content in (b"", b"\x90", b"\xc1", b"\x81\xa2id\x01"):
        with pytest.raises(Corruption):
            decode_snapshot(wrap_body(content))


def test_the_checksum_is_of_the_body() -> None:
    assert struct.unpack_from("<Q", FILE, 16)[0] == xxhash.xxh3_64_intdigest(FILE[HEADER_BYTES:])
    assert isinstance(decode_snapshot(FILE), Snapshot)
