"""The OpenAPI document says what the table says."""

import json
import re
from typing import Any

import pytest

from topics.model.position import TOKEN_PATTERN
from topics.wire.endpoints import ENDPOINTS, Endpoint
from topics.wire.openapi import openapi_document

DOCUMENT = openapi_document(ENDPOINTS, version="0.1.0")
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]


def operation(row: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][row.path][row.method.lower()]
    return found


def test_the_document_is_plain_json() -> None:
    assert json.loads(json.dumps(DOCUMENT)) == DOCUMENT
    assert DOCUMENT["openapi"] == "3.1.0"


def test_every_row_is_one_operation_with_a_name_of_its_own() -> None:
    names = [operation(row)["operationId"] for row in ENDPOINTS]
    assert len(set(names)) == len(ENDPOINTS)
    assert sum(len(methods) for methods in DOCUMENT["paths"].values()) == len(ENDPOINTS)


def test_every_reference_has_a_target() -> None:
    for name in re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(DOCUMENT)):
        assert name in SCHEMAS


@pytest.mark.parametrize("row", ENDPOINTS, ids=lambda row: f"{row.method} {row.path}")
def test_statuses_and_bodies(row: Endpoint) -> None:
    described = operation(row)
    statuses = set(map(int, described["responses"]))
    assert statuses >= {*row.ok, *row.errors, 401, 429, 500, 503}
    assert (403 in statuses) == bool(row.scopes or 403 in row.errors)
    assert ("requestBody" in described) == (row.body != "none")
    if row.body != "none":
        assert statuses >= {400, 413, 415}
    for status, response in described["responses"].items():
        if int(status) >= 400:
            assert response["content"] == {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
        assert ("headers" in response) == (status in ("429", "503"))


def test_path_parameters_are_declared() -> None:
    for row in ENDPOINTS:
        declared = {param["name"] for param in operation(row)["parameters"] if param["in"] == "path"}
        assert declared == set(re.findall(r"\{(\w+)\}", row.path))


def test_security() -> None:
    by_handler = {row.handler: operation(row)["security"] for row in ENDPOINTS}
    assert by_handler["health"] == []
    assert by_handler["write"] == [{}, {"key": ["write"]}]
    assert by_handler["claim"] == [{}, {"key": ["read", "write"]}]
    assert {"token": ["read", "write"]} in by_handler["work"]


def test_successes_carry_performance_except_probes_and_metrics() -> None:
    for row in ENDPOINTS:
        if row.response is not None and row.response not in ("Health", "Ready", "Metrics", "OpenApi", "Segments"):
            assert "performance" in SCHEMAS[row.response]["required"]


def test_integers_have_their_ranges() -> None:
    from_seq = SCHEMAS["DiffRequest"]["properties"]["from_seq"]["anyOf"]
    assert from_seq[0] == {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}
    assert from_seq[1] == {"type": "string", "pattern": TOKEN_PATTERN}
    assert SCHEMAS["DiffRequest"]["properties"]["limit"]["maximum"] == 2**32 - 1
    assert SCHEMAS["WriteRequest"]["properties"]["records"]["maxItems"] == 10_000


def test_absent_parts_of_answers_are_omitted_not_null() -> None:
    assert SCHEMAS["Record"]["properties"]["$tag"] == {"type": "string"}
    assert SCHEMAS["TopicState"]["properties"]["queue"] == {"$ref": "#/components/schemas/QueueCounters"}
    assert {"type": "null"} in SCHEMAS["TopicState"]["properties"]["last_read_ts"]["anyOf"]
    assert {"type": "null"} in SCHEMAS["RecordIn"]["properties"]["tag"]["anyOf"]


def test_only_implemented_rows_are_described() -> None:
    document = openapi_document([row for row in ENDPOINTS if row.handler == "write"], version="0.1.0")
    assert list(document["paths"]) == ["/v0/topics/{topic}"]
    assert list(document["paths"]["/v0/topics/{topic}"]) == ["post"]


def test_the_bounds_of_bulk_reads_are_described_as_they_are() -> None:
    """`from_seq` is exclusive as everywhere, `to_seq` inclusive (docs/bulk-endpoints.md)."""
    frames = next(row for row in ENDPOINTS if row.handler == "frames")
    described = {param["name"]: param.get("description", "") for param in operation(frames)["parameters"]}
    assert described["from_seq"].startswith("the last seq the reader has")
    assert described["to_seq"].startswith("the last seq wanted")
