"""Names, tag matches, configs, routers: their JSON and stored forms."""

from typing import Any

import msgspec
import pytest

from topics.errors import InvalidRequest
from topics.model.config import DEFAULT_CONFIG, ConfigPatch, TopicConfig, patch_from, resolve_config
from topics.model.names import TagMatch, check_router_name, check_topic_name, is_router_name, is_topic_name, parse_match
from topics.model.results import AppendResult, Job, Record, Tombstone, TopicState
from topics.model.router import RouterDef

DEFAULT_ECHO = (
    b'{"type":"log","ttl_ms":0,"cap_records":0,"cap_bytes":0,"discard":"old","durable":false,"durability":"disk",'
    b'"priority":null,"auto_priority":true,"auto_create":true,"idempotency_window_ms":120000,"dedupe_node":true,'
    b'"lease_ms":30000,"claim_jitter_ms":0,"max_deliveries":0,"dead_letter":null,"leases_durable":false}'
)


@pytest.mark.parametrize("name", ["a", "A9._:-", "0", "a" * 255, "x:y.z-1"])
def test_topic_names(name: str) -> None:
    assert is_topic_name(name)
    assert is_router_name(name)
    check_topic_name(name)


@pytest.mark.parametrize("name", ["", "-a", ".a", ":a", "_", "a b", "a/b", "a\n", "\na", "é", "a" * 256, "a>b", "a\0"])
def test_what_is_no_topic_name(name: str) -> None:
    assert not is_topic_name(name)
    with pytest.raises(InvalidRequest):
        check_topic_name(name)


def test_a_router_name_may_hold_an_arrow_but_not_first() -> None:
    assert is_router_name("a->b")
    assert not is_router_name(">a")
    assert not is_router_name("a->b\n")
    with pytest.raises(InvalidRequest):
        check_router_name(">")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("x", TagMatch("Eq", "x")),
        ("", TagMatch("Eq", "")),
        ("x*", TagMatch("Glob", "x")),
        ("*", TagMatch("Glob", "")),
        ("x**", TagMatch("Glob", "x*")),
        (["tag", "Eq", "x*"], TagMatch("Eq", "x*")),
        (["tag", "Glob", "a*b*"], TagMatch("Glob", "a*b")),
    ],
)
def test_match_forms(given: object, match: TagMatch) -> None:
    assert parse_match(given) == match
    assert parse_match(match.to_json()) == match
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(match), type=TagMatch) == match


BAD_MATCHES: list[object] = [
    1, None, True, {}, [], ["tag"], ["tag", "Eq"], ["tag", "Eq", "x", "y"], ["node", "Eq", "x"], ["tag", "eq", "x"],
    ["tag", "Glob", "x"], ["tag", "Glob", ""], ["tag", "Eq", 1], ["tag", "Eq", None],
    [["tag", "Eq", "x"]], {"tag": "x"},
]  # fmt: skip


@pytest.mark.parametrize("given", BAD_MATCHES)
def test_what_is_no_match(given: object) -> None:
    with pytest.raises(InvalidRequest):
        parse_match(given)


def test_matching_is_by_bytes_and_never_matches_an_absent_tag() -> None:
    assert TagMatch("Eq", "x*").matches(b"x*")
    assert not TagMatch("Eq", "x").matches(b"xy")
    assert TagMatch("Glob", "é").matches("éa".encode())
    assert not TagMatch("Glob", "chat-42:").matches(b"chat-420:c")
    assert TagMatch("Glob", "").matches(b"")
    assert not TagMatch("Glob", "").matches(None)
    assert not TagMatch("Eq", "").matches(None)


def test_stored_glob_has_no_star() -> None:
    assert msgspec.to_builtins(parse_match("pub:*")) == ["Glob", "pub:"]
    assert parse_match("pub:*").to_json() == ["tag", "Glob", "pub:*"]


def test_the_default_config_echoes_exactly() -> None:
    assert msgspec.json.encode(resolve_config(ConfigPatch()).to_dict()) == DEFAULT_ECHO
    assert msgspec.json.encode(DEFAULT_CONFIG.to_dict()) == DEFAULT_ECHO


@pytest.mark.parametrize(
    ("patch", "durability", "durable"),
    [
        ({}, "disk", False),
        ({"durable": True}, "fsync", True),
        ({"durable": True, "durability": "disk"}, "disk", False),
        ({"durable": False, "durability": "fsync"}, "fsync", True),
        ({"durability": "ephemeral"}, "ephemeral", False),
        ({"durability": None, "durable": True}, "fsync", True),
    ],
)
def test_durability_wins_over_durable(patch: dict[str, Any], durability: str, durable: bool) -> None:
    config = resolve_config(patch_from(patch))
    assert (config.durability, config.durable) == (durability, durable)


@pytest.mark.parametrize(("lease", "clamped"), [(0, 100), (99, 100), (100, 100), (86_400_001, 86_400_000)])
def test_lease_is_clamped_before_storing(lease: int, clamped: int) -> None:
    assert resolve_config(patch_from({"lease_ms": lease})).lease_ms == clamped


def test_jitter_is_clamped_and_priority_is_not() -> None:
    config = resolve_config(patch_from({"claim_jitter_ms": 2**64 - 1, "priority": -(2**31)}))
    assert (config.claim_jitter_ms, config.priority) == (5000, -(2**31))


BAD_SETTINGS: list[dict[str, Any]] = [
    {"ttl_ms": -1}, {"ttl_ms": 2**64}, {"lease_ms": 2**64}, {"cap_records": 1.0}, {"cap_bytes": "1"}, {"durable": 1},
    {"priority": 2**31}, {"type": "stack"}, {"discard": None}, {"durability": "disc"}, {"nonsense": 1},
    {"ttl_ms": True},
]  # fmt: skip


@pytest.mark.parametrize("fields", BAD_SETTINGS)
def test_bad_settings(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        patch_from(fields)


def test_a_config_survives_storage_and_ignores_newer_keys() -> None:
    config = resolve_config(patch_from({"type": "queue", "dead_letter": "dead", "priority": 5, "durable": True}))
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(config.to_dict()))
    assert TopicConfig.from_stored(stored | {"from_the_future": 1}) == config


def test_class_helpers() -> None:
    queue = resolve_config(patch_from({"type": "queue", "leases_durable": True}))
    assert queue.keeps_leases
    assert queue.is_queue
    assert not queue.is_ephemeral
    assert not resolve_config(patch_from({"leases_durable": True})).keeps_leases
    lost = resolve_config(patch_from({"type": "queue", "leases_durable": True, "durability": "ephemeral"}))
    assert lost.is_ephemeral
    assert not lost.keeps_leases


def test_router_echo() -> None:
    echo = RouterDef(name="a->b", source="a", dest="b", filter=TagMatch("Glob", "pub:")).to_json()
    assert msgspec.json.encode(echo) == (
        b'{"router":"a->b","source":"a","dest":"b","preserve_node":true,"preserve_tag":true,'
        b'"filter":["tag","Glob","pub:*"],"allow_cycle":false,"guarantee":"at_least_once"}'
    )


def test_results_carry_the_keys_of_the_contract() -> None:
    record = msgspec.json.decode(b'{"$seq":8,"$ts":9,"$tag":"t","data":null,"meta":{"k":1}}', type=Record)
    assert (record.seq, record.ts, record.node, record.tag, record.value, record.headers) == (
        8,
        9,
        None,
        "t",
        None,
        {"k": 1},
    )
    assert msgspec.json.encode(record) == b'{"$seq":8,"$ts":9,"$tag":"t","data":null,"meta":{"k":1}}'
    job = msgspec.json.decode(
        b'{"$seq":3,"lease_id":"lease_5","deadline":9,"$ts":1,"deliveries":1,"data":{"a":1}}', type=Job
    )
    assert (job.value, job.headers, job.tag) == ({"a": 1}, None, None)
    assert AppendResult("t", 3, 5, 5, 3).seqs == range(3, 6)
    state = TopicState("t", "log", 0, 1, 1, 0, 0, DEFAULT_CONFIG, 0, None, None)
    assert b'"last_write_ts":null' in msgspec.json.encode(state)
    assert b"queue" not in msgspec.json.encode(state)


def test_tombstone_keys() -> None:
    tombstone = Tombstone(1, 7, "cap", 7, 8, 12)
    assert msgspec.json.encode(tombstone) == (
        b'{"gap_from":1,"gap_to":7,"reason":"cap","missed_estimate":7,"earliest_seq":8,"head_seq":12}'
    )
