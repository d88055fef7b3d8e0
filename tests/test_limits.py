"""Clamps do what `docs/spec/http-api.md#sec-7-3` says, `0` included; limits have the values of `#sec-7-2` there."""

import pytest

from topics import limits
from topics.limits import Clamp

# field, default, low, high, what 0 means
CLAMPS = [
    (limits.DIFF_LIMIT, 256, 1, 1000, 256),
    (limits.WATCH_LIMIT, 256, 1, 1000, 256),
    (limits.WS_LIMIT, 1000, 1, 1000, 256),
    (limits.DIFF_WAIT_MS, 0, 0, 30_000, 0),
    (limits.DIFF_BATCH_BYTES, 1_048_576, 1, 8_388_608, 1_048_576),
    (limits.WS_BATCH_BYTES, 1_048_576, 1, 8_388_608, 1_048_576),
    (limits.WATCH_BATCH_BYTES, 262_144, 1, 8_388_608, 1_048_576),
    (limits.HEARTBEAT_MS, 15_000, 1000, 60_000, 1000),
    (limits.PAGE_SIZE, 100, 1, 1000, 1),
    (limits.CLAIM_MAX, 1, 1, 1000, 1),
    (limits.LEASE_MS, 30_000, 100, 86_400_000, 100),
    (limits.CLAIM_JITTER_MS, 0, 0, 5000, 0),
    (limits.NACK_DELAY_MS, 0, 0, 86_400_000, 0),
]


@pytest.mark.parametrize(("clamp", "default", "low", "high", "zero"), CLAMPS)
def test_a_clamp_moves_values_into_its_range_and_never_refuses(
    clamp: Clamp, default: int, low: int, high: int, zero: int
) -> None:
    assert clamp(None) == default
    assert clamp(0) == zero
    assert clamp(high) == clamp(high + 1) == clamp(limits.U64_MAX) == high
    assert clamp(max(low, 1)) == max(low, 1)


def test_the_heartbeat_floor_can_be_lowered_for_diagnosis() -> None:
    assert limits.HEARTBEAT_MS.with_low(20)(5) == 20
    assert limits.HEARTBEAT_MS(5) == 1000


def test_priority_is_limited_on_both_sides() -> None:
    assert [limits.EFFECTIVE_PRIORITY(value) for value in (-5000, -1, 5000)] == [-1000, -1, 1000]


def test_fixed_limits_have_the_values_of_the_contract() -> None:
    assert {
        "records": limits.RECORDS_PER_WRITE_MAX,
        "record": limits.RECORD_BYTES_MAX,
        "meta": limits.META_BYTES_MAX,
        "meta keys": limits.META_KEYS_MAX,
        "tag": limits.TAG_BYTES_MAX,
        "node": limits.NODE_BYTES_MAX,
        "key": limits.IDEMPOTENCY_KEY_BYTES_MAX,
        "watch": limits.WATCH_TOPICS_MAX,
        "seqs": limits.SEQS_PER_CALL_MAX,
        "hops": limits.ROUTER_HOPS_MAX,
    } == {
        "records": 10_000,
        "record": 1_048_576,
        "meta": 16_384,
        "meta keys": 64,
        "tag": 256,
        "node": 128,
        "key": 256,
        "watch": 256,
        "seqs": 1000,
        "hops": 8,
    }
