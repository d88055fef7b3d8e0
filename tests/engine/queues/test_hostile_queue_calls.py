"""Queue verbs given what they cannot take: the code of the contract, and not a lease, job or log frame has changed.

Three topics: `q` has one job leased to `w`, one delayed and one fresh; `log` is no queue; `absent` does not exist. The
order of checks is that of `docs/spec/http-api.md#sec-19-2`, 19.3, 19.6 and 23.2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from tests.api.client import JSON_TYPE, Client
from tests.api.server import LiveServer
from tests.engine.dumps import everything

CHANGES = ("ack", "nack", "extend")
VERBS = ("claim", *CHANGES)
GOOD: dict[str, dict[str, Any]] = {
    "claim": {"node": "w"},
    "ack": {"node": "w", "seqs": [1]},
    "nack": {"node": "w", "seqs": [1]},
    "extend": {"node": "w", "seqs": [1], "lease_ms": 1000},
}
ABSENT, A_LOG = {"topic": "absent"}, {"topic": "log"}


class Refused(NamedTuple):
    status: int
    code: str
    detail: dict[str, Any] | None = None


INVALID = Refused(400, "invalid_request")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("data"), max_body_bytes=20_000) as live:
        made = Client(live.port, http2=False)
        made.put("log")
        made.put("q", type="queue", lease_ms=86_400_000)
        made.write("q", "leased", "delayed", "fresh")
        made.ok("POST", "/v0/topics/q/claim", {"node": "w", "max": 2})
        made.ok("POST", "/v0/topics/q/nack", {"node": "w", "seqs": [2], "delay_ms": 86_400_000})
        made.close()
        yield live


@pytest.fixture(scope="module")
def client(server: LiveServer) -> Iterator[Client]:
    made = Client(server.port, http2=False)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def nothing_changes(server: LiveServer) -> Iterator[None]:
    before = everything(server)
    yield
    assert everything(server) == before, "a refused call changed something"


def refuse(client: Client, verb: str, topic: str, body: Any, expected: Refused) -> None:
    client.refused(client.send("POST", f"/v0/topics/{topic}/{verb}", body), *expected)


# --- bodies that nothing can be made of ---------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["q", "log", "absent"])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b'"x"', b"null", b'{"node":"w",}', b'{"node":NaN}', b"\xff", b"\xef\xbb\xbf{}", b'{"node":"w"} x'],
)
def test_what_is_no_json_object(client: Client, verb: str, topic: str, content: bytes) -> None:
    path = f"/v0/topics/{topic}/{verb}"
    client.refused(client.raw("POST", path, content=content, headers=JSON_TYPE), *INVALID)


@pytest.mark.parametrize("topic", ["q", "log", "absent"])
@pytest.mark.parametrize("verb", VERBS)
def test_no_body_another_type_and_too_much(client: Client, verb: str, topic: str) -> None:
    path = f"/v0/topics/{topic}/{verb}"
    unsupported = Refused(415, "unsupported_media_type")
    client.refused(client.raw("POST", path, headers=JSON_TYPE), *INVALID)
    client.refused(client.raw("POST", path), *(INVALID if verb == "claim" else unsupported))
    client.refused(client.raw("POST", path, content=b"{}", headers={"content-type": "text/json"}), *unsupported)
    too_much = client.raw("POST", path, content=b" " * 20_001, headers={"content-type": "text/json"})
    client.refused(too_much, 413, "payload_too_large")


def _without(verb: str) -> list[tuple[str, dict[str, Any]]]:
    good = GOOD[verb]
    return [(verb, {name: value for name, value in good.items() if name != left_out}) for left_out in good]


@pytest.mark.parametrize("topic", ["q", "log", "absent"])
@pytest.mark.parametrize(("verb", "body"), [case for verb in VERBS for case in _without(verb)])
def test_what_is_required_is_missing(client: Client, topic: str, verb: str, body: dict[str, Any]) -> None:
    refuse(client, verb, topic, body, INVALID)


NOT_U64: list[Any] = [1.0, -1, "1", True, [1], {}, 2**64]
NOT_TEXT: list[Any] = [1, None, True, ["w"], {}]
NOT_SEQS: list[Any] = [None, 1, "1", {}, *([one] for one in NOT_U64)]
NOT_TEXTS: list[Any] = ["lease_1", [1], [None], {}]


@pytest.mark.parametrize("topic", ["q", "absent"])
@pytest.mark.parametrize(
    ("verb", "fields"),
    [
        *(("claim", {"max": value}) for value in [*NOT_U64, None, 2**32]),
        *(("claim", {"lease_ms": value}) for value in NOT_U64),
        *((verb, {"node": value}) for verb in VERBS for value in NOT_TEXT),
        *((verb, {"seqs": value}) for verb in CHANGES for value in NOT_SEQS),
        *((verb, {"lease_ids": value}) for verb in CHANGES for value in NOT_TEXTS),
        *(("nack", {"delay_ms": value}) for value in NOT_U64),
        *(("extend", {"lease_ms": value}) for value in NOT_U64),
    ],
)
def test_fields_of_another_type(client: Client, topic: str, verb: str, fields: dict[str, Any]) -> None:
    refuse(client, verb, topic, {**GOOD[verb], **fields}, INVALID)


# --- where the call goes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_a_log_and_nothing(client: Client, verb: str) -> None:
    refuse(client, verb, "absent", GOOD[verb], Refused(404, "topic_not_found", ABSENT))
    refuse(client, verb, "log", GOOD[verb], Refused(409, "not_a_queue", A_LOG))


@pytest.mark.parametrize("node", ["", "n" * 129, "ö" * 65])
def test_a_claim_looks_at_its_node_last(client: Client, node: str) -> None:
    refuse(client, "claim", "absent", {"node": node}, Refused(404, "topic_not_found", ABSENT))
    refuse(client, "claim", "log", {"node": node}, Refused(409, "not_a_queue", A_LOG))
    refuse(client, "claim", "q", {"node": node}, INVALID)


@pytest.mark.parametrize("topic", ["q", "log", "absent"])
@pytest.mark.parametrize("verb", CHANGES)
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"node": ""}, INVALID),
        ({"seqs": [*range(1, 1002)]}, Refused(400, "batch_too_large", {"seqs": 1001, "max": 1000})),
        ({"seqs": [*range(1, 1002)], "lease_ids": ["nope"]}, INVALID),
        ({"seqs": [*range(1, 1002)], "node": ""}, INVALID),
        ({"seqs": [*range(1, 1002)], "lease_ids": [""]}, Refused(400, "batch_too_large", {"seqs": 1001, "max": 1000})),
        ({"lease_ids": ["lease_1", "lease_2"]}, INVALID),
        ({"seqs": [1, 3], "lease_ids": ["lease_1"]}, INVALID),
        ({"seqs": [], "lease_ids": ["lease_1"]}, INVALID),
    ],
)
def test_an_ack_looks_at_its_body_first(
    client: Client, topic: str, verb: str, fields: dict[str, Any], expected: Refused
) -> None:
    refuse(client, verb, topic, {**GOOD[verb], **fields}, expected)


MALFORMED = ["1", "lease", "lease_", "lease_g", "lease_-1", "lease_0x1", "lease_ 1", "lease_1 ", "lease_1\n", "Lease_1"]


@pytest.mark.parametrize("topic", ["q", "absent"])
@pytest.mark.parametrize("verb", CHANGES)
@pytest.mark.parametrize("lease_id", MALFORMED)
def test_malformed_lease_ids(client: Client, topic: str, verb: str, lease_id: str) -> None:
    refuse(client, verb, topic, {**GOOD[verb], "lease_ids": [lease_id]}, INVALID)


# --- no errors, and no effects ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", CHANGES)
@pytest.mark.parametrize(
    "fields",
    [
        {"node": "somebody else"},
        {"lease_ids": ["lease_2"]},
        {"lease_ids": ["lease_ffffffffffffffff"]},
        {"node": "somebody else", "lease_ids": ["lease_1"]},
        {"seqs": [2, 3, 99, 0, 2**64 - 1]},
        {"seqs": [3, 3]},
        {"seqs": []},
    ],
)
def test_whoever_does_not_hold_a_job_is_skipped(client: Client, verb: str, fields: dict[str, Any]) -> None:
    body = {**GOOD[verb], **fields}
    answer = client.ok("POST", f"/v0/topics/q/{verb}", body)
    assert answer["skipped"] == body["seqs"]
    assert answer[f"{verb.removesuffix('e')}ed"] == 0


# --- the work stream --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "accept", "expected"),
    [
        ("q/work?node=w", "application/json", Refused(406, "not_acceptable")),
        ("absent/work", "application/json", Refused(406, "not_acceptable")),
        ("q/work", "*/*", INVALID),
        ("q/work?node=", "*/*", INVALID),
        (f"q/work?node={'n' * 129}", "*/*", INVALID),
        ("absent/work", "*/*", INVALID),
        ("absent/work?node=w", "*/*", Refused(404, "topic_not_found", ABSENT)),
        ("log/work?node=w", "*/*", Refused(409, "not_a_queue", A_LOG)),
    ],
)
def test_work_streams(client: Client, path: str, accept: str, expected: Refused) -> None:
    client.refused(client.send("GET", f"/v0/topics/{path}", accept=accept), *expected)


@pytest.mark.parametrize("verb", VERBS)
def test_other_methods(client: Client, verb: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        client.refused(client.send(method, f"/v0/topics/q/{verb}", {}), 405, "method_not_allowed")
