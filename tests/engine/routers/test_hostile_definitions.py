"""Router verbs given what they cannot take: the code of the contract, and no router, topic or log frame has changed.

There are `a -> b -> c` and `x -> y`; the order of checks is that of `docs/spec/http-api.md#sec-16-1`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.api.client import JSON_TYPE, Client
from tests.api.server import LiveServer
from tests.engine.dumps import everything

INVALID = (400, "invalid_request")
FAN_IN = "router_dest_fan_in"
REPOINT = "router_repoint_forbidden"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("data")) as live:
        made = Client(live.port, http2=False)
        for source, dest in ("ab", "bc", "xy"):
            made.ok("PUT", f"/v0/routers/{source}{dest}", {"source": source, "dest": dest}, status=201)
        made.put("queue", type="queue")
        made.write("a", 1)
        assert made.diff("c")["head_seq"] == 1
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


def put(client: Client, name: str, **body: Any) -> Any:
    return client.send("PUT", f"/v0/routers/{name}", body)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"source":"a","dest":"n",}', b"\xff"])
def test_what_is_no_json_object(client: Client, content: bytes) -> None:
    client.refused(client.raw("PUT", "/v0/routers/r", content=content, headers=JSON_TYPE), *INVALID)


def test_another_content_type(client: Client) -> None:
    for content in (b"", b'{"source":"a","dest":"n"}'):
        client.refused(client.raw("PUT", "/v0/routers/r", content=content), 415, "unsupported_media_type")


NOT_TEXT: list[Any] = [1, None, True, ["a"], {}]
NOT_BOOL: list[Any] = [0, 1, "true", None, []]
NO_FILTERS: list[Any] = [
    *(1, True, [], {}, ["tag"], ["tag", "Eq"], ["tag", "Eq", 1], ["node", "Eq", "x"]),
    *(["tag", "Like", "x"], ["tag", "Glob", "a*b"]),
]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"source": "a"},
        {"dest": "n"},
        *({"source": value, "dest": "n"} for value in NOT_TEXT),
        *({"source": "a", "dest": value} for value in NOT_TEXT),
        *(
            {"source": "a", "dest": "n", name: value}
            for name in ("preserve_node", "preserve_tag", "create_dest", "allow_cycle")
            for value in NOT_BOOL
        ),
        *({"source": "a", "dest": "n", "guarantee": value} for value in ("at_most_once", "", None, 1, "EXACTLY_ONCE")),
        *({"source": "a", "dest": "n", "filter": value} for value in NO_FILTERS),
    ],
)
def test_fields_that_are_missing_or_of_another_type(client: Client, fields: dict[str, Any]) -> None:
    client.refused(put(client, "r", **fields), *INVALID)


BAD_NAMES = ["", "-a", ".a", "a b", "a/b", "a>b", "ä", "a\n", "n" * 256]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_of_topics(client: Client, name: str) -> None:
    client.refused(put(client, "r", source=name, dest="n"), *INVALID)
    client.refused(put(client, "r", source="a", dest=name), *INVALID)
    client.refused(put(client, "r", source="a", dest=name, create_dest=False), *INVALID)


@pytest.mark.parametrize("name", ["-r", ">r", "r%20r", "r%0A", "%C3%A4", "r" * 256])
def test_names_of_routers(client: Client, name: str) -> None:
    client.refused(put(client, name, source="a", dest="n"), *INVALID)


def test_one_topic_on_both_ends(client: Client) -> None:
    client.refused(put(client, "r", source="a", dest="a"), *INVALID)
    client.refused(put(client, "r", source="a", dest="a", allow_cycle=True), *INVALID)
    client.refused(put(client, "r", source="n", dest="n", create_dest=False), *INVALID)


def test_a_dest_that_must_be_there(client: Client) -> None:
    absent = put(client, "r", source="n", dest="n2", create_dest=False)
    client.refused(absent, 404, "topic_not_found", {"topic": "n2"})


@pytest.mark.parametrize("source", ["a", "c", "n", "queue"])
def test_a_second_source_into_one_dest(client: Client, source: str) -> None:
    code, detail = "topic_exists_incompatible", {"topic": "y", "reason": FAN_IN}
    client.refused(put(client, "r", source=source, dest="y"), 409, code, detail)
    client.refused(put(client, "ab", source=source, dest="y"), 409, code, detail)


@pytest.mark.parametrize(("source", "dest"), [("a", "n"), ("a", "y"), ("n", "n2"), ("x", "n"), ("y", "x")])
def test_a_router_pointed_elsewhere(client: Client, source: str, dest: str) -> None:
    detail = {"router": "xy", "reason": REPOINT, "existing_source": "x", "existing_dest": "y"}
    client.refused(put(client, "xy", source=source, dest=dest), 409, "topic_exists_incompatible", detail)


@pytest.mark.parametrize(
    ("source", "dest", "cycle"),
    [("b", "a", ["b", "a", "b"]), ("c", "a", ["c", "a", "b", "c"]), ("y", "x", ["y", "x", "y"])],
)
def test_cycles(client: Client, source: str, dest: str, cycle: list[str]) -> None:
    client.refused(put(client, "r", source=source, dest=dest), 409, "router_cycle", {"cycle": cycle})
    closed = put(client, "r", source=source, dest=dest, create_dest=False, guarantee="exactly_once")
    client.refused(closed, 409, "router_cycle", {"cycle": cycle})


def test_caps(tmp_path: Path) -> None:
    """The cap of routers is looked at before a cycle is, and behind whatever is wrong with the ends."""
    with LiveServer(tmp_path, max_routers=1, max_topics=3) as server:
        client = Client(server.port, http2=False)
        client.ok("PUT", "/v0/routers/ab", {"source": "a", "dest": "b"}, status=201)
        before = everything(server)
        no_router = {"limit": "max_routers", "max": 1}
        client.refused(put(client, "r", source="n", dest="n2"), 429, "throttled", no_router)
        client.refused(put(client, "r", source="b", dest="a"), 429, "throttled", no_router)
        fan_in = {"topic": "b", "reason": FAN_IN}
        client.refused(put(client, "r", source="n", dest="b"), 409, "topic_exists_incompatible", fan_in)
        assert everything(server) == before
        client.ok("DELETE", "/v0/routers/ab")
        before = everything(server)
        no_topic = {"limit": "max_topics", "max": 3}
        client.refused(put(client, "r", source="n", dest="n2"), 429, "throttled", no_topic)
        assert everything(server)["topics"] == before["topics"]
        assert everything(server)["routers"] == {}
        client.close()


def test_what_is_not_there(client: Client) -> None:
    client.refused(client.send("GET", "/v0/routers/none"), 404, "router_not_found", {"router": "none"})
    assert client.ok("DELETE", "/v0/routers/none")["deleted"] is False
    client.refused(client.send("POST", "/v0/routers/ab", {}), 405, "method_not_allowed")
