"""Request bodies: defaults, clamps, and the checks that come after parsing."""

import hypothesis
import pytest
from hypothesis import strategies as st

from topics.errors import BatchTooLarge, InvalidRequest
from topics.model.names import TagMatch
from topics.model.results import lease_text
from topics.wire.incoming.queue_requests import (
    NO_SUCH_LEASE,
    check_worker,
    decode_ack,
    decode_claim,
    decode_extend,
    decode_nack,
    parse_lease,
)
from topics.wire.incoming.requests import (
    TopicStart,
    decode_datas,
    decode_delete,
    decode_diff,
    decode_router,
    decode_watch,
    decode_write,
    node_set,
)

U32, U64 = 2**32 - 1, 2**64 - 1


# --- write -----------------------------------------------------------------------------------------------------------


def test_write_defaults() -> None:
    request = decode_write(b'{"records":[{"data":1}]}')
    assert (request.node, request.idempotency_key, request.create, request.config) == (None, None, None, None)
    assert not request.disable_backpressure


def test_the_key_of_the_body_beats_the_header() -> None:
    bare = decode_write(b'{"records":[{"data":1}]}')
    assert bare.batch().key is None
    assert bare.batch("header").key == b"header"
    assert decode_write(b'{"records":[{"data":1}],"idempotency_key":"body"}').batch("header").key == b"body"
    assert decode_write(b'{"records":[{"data":1}],"idempotency_key":""}').batch("header").key == b""
    assert decode_write(b'{"records":[{"data":1}],"idempotency_key":null}').batch("header").key == b"header"


def test_a_batch_carries_node_tag_and_payload() -> None:
    batch = decode_write(b'{"node":"n","records":[{"data": {"a": 1} ,"tag":"\\u00e9","meta":{ }}]}').batch()
    assert batch.blobs == [b'{"d":{"a": 1},"m":{ }}']
    assert (batch.nodes, batch.tags, batch.sizes) == (b"n", ["é".encode()], [11])


def test_limits_of_records_are_for_the_batch_not_for_parsing() -> None:
    request = decode_write(b'{"records":[]}')
    with pytest.raises(InvalidRequest):
        request.batch()
    many = decode_write(b'{"records":[%b]}' % b",".join([b'{"data":1}'] * 10_001))
    with pytest.raises(BatchTooLarge):
        many.batch()


def test_bad_utf8_in_a_tag() -> None:
    with pytest.raises(InvalidRequest):
        decode_write(b'{"records":[{"data":1,"tag":"\xff"}]}')


# --- diff ------------------------------------------------------------------------------------------------------------


def test_diff_defaults() -> None:
    request = decode_diff(b"{}")
    assert (request.from_seq, request.limit, request.wait_ms, request.max_batch_bytes) == (0, 256, 0, 1048576)
    assert (request.include_tags, request.include_meta, request.node) == (False, True, None)


@pytest.mark.parametrize(("given", "effective"), [(0, 256), (1, 1), (1000, 1000), (1001, 1000), (U32, 1000)])
def test_limit_is_clamped(given: int, effective: int) -> None:
    assert decode_diff(b'{"limit":%d}' % given).limit == effective
    assert decode_watch(b'{"topics":{"t":{}},"limit":%d}' % given).limit == effective


@pytest.mark.parametrize(("given", "effective"), [(0, 0), (1, 1), (30_000, 30_000), (30_001, 30_000), (U32, 30_000)])
def test_wait_is_clamped(given: int, effective: int) -> None:
    assert decode_diff(b'{"wait_ms":%d}' % given).wait_ms == effective


@pytest.mark.parametrize(
    ("given", "effective"), [(0, 1048576), (1, 1), (8388608, 8388608), (8388609, 8388608), (U64, 8388608)]
)
def test_batch_bytes_are_clamped(given: int, effective: int) -> None:
    assert decode_diff(b'{"max_batch_bytes":%d}' % given).max_batch_bytes == effective
    assert decode_watch(b'{"topics":{"t":{}},"max_batch_bytes":%d}' % given).max_batch_bytes == effective


@pytest.mark.parametrize(
    ("given", "nodes"),
    [
        (b'"n"', {b"n"}),
        (b'""', {b""}),
        (b'["a","b","a"]', {b"a", b"b"}),
        (b"[]", None),
        (b"null", None),
        (b'["\\u00e9"]', {"é".encode()}),
    ],
)
def test_node_filter(given: bytes, nodes: set[bytes] | None) -> None:
    assert node_set(decode_diff(b'{"node":%b}' % given).node) == nodes


@pytest.mark.parametrize("given", [b"1", b"true", b"{}", b"[1]", b"[null]", b'[["a"]]'])
def test_bad_node_filter(given: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_diff(b'{"node":%b}' % given)


# --- delete ----------------------------------------------------------------------------------------------------------


def test_delete_selectors() -> None:
    assert decode_delete(b'{"before_seq":0}').selector() == (0, None)
    assert decode_delete(b'{"match":"a*"}').selector() == (None, TagMatch("Glob", "a"))
    both = decode_delete(b'{"before_seq":18446744073709551615,"match":["tag","Eq","a"]}')
    assert both.selector() == (U64, TagMatch("Eq", "a"))


@pytest.mark.parametrize("body", [b"{}", b'{"before_seq":null}', b'{"match":null,"before_seq":null}', b'{"x":1}'])
def test_a_delete_needs_a_selector(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_delete(body).selector()


@pytest.mark.parametrize(
    "match",
    [b"1", b"{}", b"[]", b'["tag"]', b'["tag","Eq",1]', b'["tag","Glob","a"]', b'["x","Eq","a"]',
     b'["tag","Eq","a","b"]'],
)  # fmt: skip
def test_bad_predicates(match: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_delete(b'{"match":%b}' % match).selector()
    with pytest.raises(InvalidRequest):
        decode_router(b'{"source":"a","dest":"b","filter":%b}' % match).definition("r")


@pytest.mark.parametrize("value", [b"-1", b"1.0", b"18446744073709551616", b'"1"', b"true"])
def test_bad_before_seq(value: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_delete(b'{"before_seq":%b}' % value)


# --- queues ----------------------------------------------------------------------------------------------------------


def test_claim_defaults_and_clamps() -> None:
    assert (decode_claim(b'{"node":"w"}').max, decode_claim(b'{"node":"w"}').lease_ms) == (1, None)
    for given, effective in ((0, 1), (1000, 1000), (1001, 1000), (U32, 1000)):
        assert decode_claim(b'{"node":"w","max":%d}' % given).max == effective
    for given, effective in ((0, 100), (100, 100), (86_400_001, 86_400_000), (U64, 86_400_000)):
        assert decode_claim(b'{"node":"w","lease_ms":%d}' % given).lease_ms == effective
    assert decode_claim(b'{"node":"w","lease_ms":null}').lease_ms is None


@pytest.mark.parametrize(
    "body",
    [b"{}", b'{"node":null}', b'{"node":1}', b'{"node":"w","max":null}', b'{"node":"w","max":4294967296}',
     b'{"node":"w","lease_ms":18446744073709551616}'],
)  # fmt: skip
def test_bad_claims(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_claim(body)


def test_the_node_of_a_claim_is_checked_after_parsing() -> None:
    assert decode_claim(b'{"node":"%b"}' % (b"n" * 128)).check_node() == b"n" * 128
    for node in (b"", b"n" * 129, "é".encode() * 65):
        request = decode_claim(b'{"node":"%b"}' % node)
        with pytest.raises(InvalidRequest):
            request.check_node()


def test_check_worker() -> None:
    assert check_worker("é" * 64) == "é".encode() * 64
    with pytest.raises(InvalidRequest):
        check_worker("")


@pytest.mark.parametrize(
    ("text", "lease_id"),
    [
        ("", None),
        ("lease_1", 1),
        ("lease_1f", 31),
        ("lease_ffffffffffffffff", U64),
        ("lease_1F", NO_SUCH_LEASE),
        ("lease_01", NO_SUCH_LEASE),
        ("lease_0", NO_SUCH_LEASE),
    ],
)
def test_lease_ids(text: str, lease_id: int | None) -> None:
    assert parse_lease(text) == lease_id


@pytest.mark.parametrize(
    "text", ["lease_", "lease", "1f", "lease_g", "lease_1 ", "LEASE_1", "lease_1\n", "lease_" + "f" * 17]
)
def test_malformed_lease_ids(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_lease(text)


def test_lease_text_is_lower_case_hex() -> None:
    assert lease_text(1) == "lease_1"
    assert lease_text(0xABC) == "lease_abc"


def test_ack_fences() -> None:
    assert decode_ack(b'{"node":"w","seqs":[1,2]}').check() is None
    assert decode_ack(b'{"node":"w","seqs":[1,2],"lease_ids":[]}').check() is None
    assert decode_ack(b'{"node":"w","seqs":[1,2],"lease_ids":["","lease_a"]}').check() == [None, 10]
    assert decode_ack(b'{"node":"w","seqs":[]}').check() is None


@pytest.mark.parametrize(
    "body",
    [b'{"seqs":[1]}', b'{"node":"w"}', b'{"node":"w","seqs":null}', b'{"node":"w","seqs":[-1]}',
     b'{"node":"w","seqs":[1.0]}',
     b'{"node":"w","seqs":["1"]}', b'{"node":"w","seqs":[18446744073709551616]}',
     b'{"node":"w","seqs":[],"lease_ids":null}',
     b'{"node":"w","seqs":[],"lease_ids":[1]}'],
)  # fmt: skip
def test_bad_acks(body: bytes) -> None:
    for decode in (decode_ack, decode_nack):
        with pytest.raises(InvalidRequest):
            decode(body)


def test_order_of_checks_of_a_queue_call() -> None:
    seqs = b",".join([b"1"] * 1001)
    with pytest.raises(InvalidRequest):  # a token comes before the count
        decode_ack(b'{"node":"w","seqs":[%b],"lease_ids":["x"]}' % seqs).check()
    with pytest.raises(InvalidRequest):  # so does the node
        decode_ack(b'{"node":"","seqs":[%b]}' % seqs).check()
    with pytest.raises(BatchTooLarge) as refused:  # the count comes before the number of tokens
        decode_ack(b'{"node":"w","seqs":[%b],"lease_ids":["lease_1"]}' % seqs).check()
    assert refused.value.detail == {"seqs": 1001, "max": 1000}
    with pytest.raises(InvalidRequest):
        decode_ack(b'{"node":"w","seqs":[1,2],"lease_ids":["lease_1"]}').check()
    assert decode_ack(b'{"node":"w","seqs":[%b]}' % seqs[:-2]).check() is None


def test_nack_delay_is_clamped() -> None:
    assert decode_nack(b'{"node":"w","seqs":[]}').delay_ms is None
    assert decode_nack(b'{"node":"w","seqs":[],"delay_ms":null}').delay_ms is None
    for given, effective in ((0, 0), (86_400_000, 86_400_000), (86_400_001, 86_400_000), (U64, 86_400_000)):
        assert decode_nack(b'{"node":"w","seqs":[],"delay_ms":%d}' % given).delay_ms == effective
    with pytest.raises(InvalidRequest):
        decode_nack(b'{"node":"w","seqs":[],"delay_ms":"5"}')


def test_extend_needs_a_lease_and_clamps_it() -> None:
    with pytest.raises(InvalidRequest):
        decode_extend(b'{"node":"w","seqs":[]}')
    with pytest.raises(InvalidRequest):
        decode_extend(b'{"node":"w","seqs":[],"lease_ms":null}')
    for given, effective in ((0, 100), (99, 100), (5000, 5000), (U64, 86_400_000)):
        request = decode_extend(b'{"node":"w","seqs":[],"lease_ms":%d}' % given)
        assert (request.lease_ms, request.check()) == (effective, None)


# --- routers and watch -----------------------------------------------------------------------------------------------


def test_router_definition() -> None:
    router = decode_router(b'{"source":"a","dest":"b"}').definition("a->b")
    assert (router.name, router.source, router.dest, router.filter) == ("a->b", "a", "b", None)
    assert (router.preserve_node, router.preserve_tag, router.create_dest, router.allow_cycle) == (
        True,
        True,
        True,
        False,
    )
    assert router.guarantee == "at_least_once"
    other = decode_router(
        b'{"source":"a","dest":"b","preserve_node":false,"preserve_tag":false,"create_dest":false,"allow_cycle":true,'
        b'"guarantee":"exactly_once","filter":"x*"}'
    ).definition("r")
    assert (other.preserve_node, other.preserve_tag, other.create_dest, other.allow_cycle) == (
        False,
        False,
        False,
        True,
    )
    assert (other.guarantee, other.filter) == ("exactly_once", TagMatch("Glob", "x"))


@pytest.mark.parametrize(
    "body",
    [b"{}", b'{"source":"a"}', b'{"source":"a","dest":null}', b'{"source":"a","dest":"b","guarantee":"once"}',
     b'{"source":"a","dest":"b","guarantee":null}', b'{"source":"a","dest":"b","preserve_tag":null}'],
)  # fmt: skip
def test_bad_routers(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_router(body)


def test_watch_defaults() -> None:
    request = decode_watch(b'{"topics":{"a":{},"b":{"from_seq":7},"c":{"tail":true,"x":1}}}')
    assert request.topics == {"a": TopicStart(), "b": TopicStart(7), "c": TopicStart(0, True)}
    assert (request.limit, request.max_batch_bytes, request.heartbeat_ms) == (256, 262144, 15000)
    assert (request.include_meta, request.include_tags, request.include_data) == (True, False, True)
    assert request.consistency == "eventual"


@pytest.mark.parametrize(
    "body",
    [b"{}", b'{"topics":{}}', b'{"topics":null}', b'{"topics":[]}', b'{"topics":{"a":null}}', b'{"topics":{"a":1}}',
     b'{"topics":{"a":{"from_seq":-1}}}', b'{"topics":{"a":{"from_seq":18446744073709551616}}}',
     b'{"topics":{"a":{"tail":null}}}', b'{"topics":{"a":{}},"consistency":"weak"}',
     b'{"topics":{"a":{}},"heartbeat_ms":18446744073709551616}'],
)  # fmt: skip
def test_bad_watches(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_watch(body)


def test_a_watch_has_at_most_256_topics() -> None:
    def body(count: int) -> bytes:
        return b'{"topics":{%b}}' % b",".join(b'"t%d":{}' % at for at in range(count))

    assert len(decode_watch(body(256)).topics) == 256
    with pytest.raises(InvalidRequest):
        decode_watch(body(257))


@pytest.mark.parametrize(
    ("given", "low_ms", "effective"),
    [(0, None, 1000), (999, None, 1000), (60_001, None, 60_000), (U64, None, 60_000), (50, 20, 50), (5, 20, 20), (0,
     20, 20)],
)  # fmt: skip
def test_heartbeat_is_clamped_when_the_session_begins(given: int, low_ms: int | None, effective: int) -> None:
    assert decode_watch(b'{"topics":{"a":{}},"heartbeat_ms":%d}' % given).heartbeat(low_ms=low_ms) == effective


def test_a_replaced_topic_option_may_have_any_type() -> None:
    request = decode_watch(b'{"topics":{"a":{"from_seq":"x","from_seq":3}}}')
    assert request.topics == {"a": TopicStart(3)}


def datas_of(body: bytes) -> list[bytes] | None:
    datas = decode_datas(body)
    return None if datas is None else [bytes(data) for data in datas]


LONG = [b'{"data":%d}' % (10**60 + n) for n in range(20)]


@pytest.mark.parametrize(
    "extra",
    [
        b'{"data":1,"tag":"x"}',
        b'{"data":1,"node":null}',
        b'{"data":1,"meta":{}}',
        b'{"data":1,"data":2}',
        b'{"data":1,"dat\\u0061":2}',
        b'{"data":1,"other":2}',
        b'{"data": 1}',
        b'{"data":"\xc3\xa9"}',
        b'{"data":' + b"[" * 200 + b"]" * 200 + b"}",
        b"{}",
        b"1",
    ],
)
def test_only_records_that_are_payloads_and_nothing_else_are_taken_as_such(extra: bytes) -> None:
    body = b'{"records":[%b]}'
    assert datas_of(body % b",".join(LONG)) == [record[8:-1] for record in LONG]
    for at in (1, 10, 20):
        assert datas_of(body % b",".join([*LONG[:at], extra, *LONG[at:]])) is None
    assert datas_of(body % b",".join(LONG) + b" ") is None
    assert datas_of(b'{"records":[%b],"node":"n"}' % b",".join(LONG)) is None
    assert datas_of(body % b",".join(LONG[:3])) is None, "too short"


PAYLOADS = [b"1", b'"x"', b'{"data":{"data":[1]}}', b"[" * 60 + b"]" * 60, b" 1", b'"\\\\"']


@hypothesis.given(st.lists(st.sampled_from(PAYLOADS)))
def test_payloads_are_those_that_the_usual_way_finds(payloads: list[bytes]) -> None:
    payloads += [b'"%b"' % (b"x" * 100)] * 10
    body = b'{"records":[%b]}' % b",".join(b'{"data":%b}' % payload for payload in payloads)
    usual = decode_write(body[:-1] + b" }").batch("key")
    assert decode_write(body).batch("key") == usual
    assert (datas_of(body) is None) == (b" 1" in payloads)
