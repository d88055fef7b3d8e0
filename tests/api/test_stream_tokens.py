"""Stream tokens against a whole server, with the clients that browsers are (`docs/spec/readers.md#sec-9`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.api.server import LiveServer
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect as ws_connect
from websockets.typing import Subprotocol

import topics
from topics.client import Client
from topics.errors import Forbidden, InvalidRequest

PAGE = "https://app.example.com"
KEYS = "ops,shop:rw:eu.,dash:read"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder: Path = tmp_path_factory.mktemp("tokens")
    with LiveServer(folder, api_keys=KEYS, allowed_origins=PAGE) as live:
        with topics.connect(f"http://127.0.0.1:{live.port}", "ops") as client:
            for name in ("eu.a", "eu.b", "us.a"):
                client.topic(name).append({"in": name})
            client.queue("eu.jobs").append(1)
        yield live


@pytest.fixture
def url(server: LiveServer) -> str:
    return f"http://127.0.0.1:{server.port}"


def client_of(url: str, key: str) -> Client:
    return topics.connect(url, key)


def socket(url: str, token: str | None = None, protocols: list[str] | None = None) -> Any:
    query = "" if token is None else f"?token={token}"
    offered = None if protocols is None else [Subprotocol(name) for name in protocols]
    return ws_connect(f"ws://{url.removeprefix('http://')}/v0/ws{query}", subprotocols=offered)


def ask(open_socket: Any, **command: Any) -> dict[str, Any]:
    """The reply to a command; frames of subscriptions may come before it."""
    open_socket.send(json.dumps({"request_id": 7, **command}))
    while True:
        answer: dict[str, Any] = json.loads(open_socket.recv(5))
        if answer.get("request_id") == 7:
            return answer


def test_a_page_subscribes_with_a_token_in_the_address(url: str) -> None:
    with client_of(url, "shop") as client:
        token = client.stream_token(["eu.a"]).token
    with socket(url, token) as opened:
        assert ask(opened, op="subscribe", topic="eu.a")["op"] == "subscribed"
        assert json.loads(opened.recv(5))["records"][0]["data"] == {"in": "eu.a"}
        assert ask(opened, op="subscribe", topic="eu.b")["code"] == "forbidden"


def test_a_page_subscribes_with_a_token_among_its_subprotocols(url: str) -> None:
    with client_of(url, "dash") as client:
        token = client.stream_token().token
    with socket(url, protocols=["topics", f"topics.token.{token}"]) as opened:
        assert opened.subprotocol == "topics"
        assert ask(opened, op="subscribe", topic="us.a")["op"] == "subscribed"
    with socket(url, protocols=[f"topics.token.{token}"]) as opened:
        assert ask(opened, op="publish", topic="us.a", records=[{"data": 1}])["code"] == "forbidden"


def test_a_token_may_have_fewer_scopes_than_its_key(url: str) -> None:
    with client_of(url, "ops") as client:
        token = client.stream_token(["eu.*"], scopes=["read"]).token
    with socket(url, token) as opened:
        assert ask(opened, op="publish", topic="eu.a", records=[{"data": 1}])["code"] == "forbidden"
        assert ask(opened, op="subscribe", topic="us.a")["code"] == "forbidden"
        assert ask(opened, op="subscribe", topic="eu.b")["op"] == "subscribed"


@pytest.mark.parametrize("token", ["ops", "st_unknown", ""])
def test_neither_a_key_nor_an_unknown_token_opens_a_socket(url: str, token: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        socket(url, token)
    assert refused.value.response.status_code == 401


def test_a_token_opens_the_sessions_of_its_key(url: str) -> None:
    watch = httpx.post(f"{url}/v0/watch", json={"topics": {"eu.a": {}, "eu.b": {}}}, headers=bearer("shop")).json()
    with client_of(url, "shop") as shop, client_of(url, "ops") as ops:
        whole, part, other = shop.stream_token().token, shop.stream_token(["eu.a"]).token, ops.stream_token().token
    address = url + watch["stream_url"]
    with httpx.stream("GET", f"{address}?token={whole}", headers={"Origin": PAGE}) as stream:
        assert stream.status_code == 200
        assert stream.headers["access-control-allow-origin"] == PAGE
        assert next(line for line in stream.iter_lines() if line.startswith("data:"))
    assert httpx.get(f"{address}?token={part}").status_code == 403
    assert httpx.get(f"{address}?token={other}").status_code == 401
    assert httpx.get(address).status_code == 401


def test_a_worker_in_a_page_gets_jobs_with_a_token(url: str) -> None:
    with client_of(url, "shop") as client:
        token, read_only = client.stream_token(["eu.jobs"]).token, client.stream_token(scopes=["read"]).token
    address = f"{url}/v0/topics/eu.jobs/work?node=page"
    with httpx.stream("GET", f"{address}&token={token}") as stream:
        assert stream.status_code == 200
        assert next(line for line in stream.iter_lines() if line.startswith("event: job"))
    assert httpx.get(f"{address}&token={read_only}").status_code == 403


def test_a_token_opens_nothing_but_streams_and_makes_no_other_tokens(url: str) -> None:
    with client_of(url, "ops") as client:
        token = client.stream_token().token
    for way in ({"params": {"token": token}}, {"headers": bearer(token)}):
        assert httpx.get(f"{url}/v0/topics", **way).status_code == 401  # type: ignore[arg-type]
        assert httpx.post(f"{url}/v0/tokens", **way).status_code == 401  # type: ignore[arg-type]


def test_an_expired_token_opens_nothing(server: LiveServer, url: str) -> None:
    with client_of(url, "ops") as client:
        token = client.stream_token(ttl_ms=1000)
    with socket(url, token.token) as opened:
        server.clock.ahead_ms += 1500
        assert ask(opened, op="ping")["op"] == "pong", "a stream that is open goes on"
    with pytest.raises(InvalidStatus):
        socket(url, token.token)


def test_what_a_token_may_be_is_checked(url: str) -> None:
    with client_of(url, "shop") as client:
        with pytest.raises(Forbidden):
            client.stream_token(["us.a"])
        for topics_, scopes in (([], None), (["eu. no name"], None), (None, []), (None, ["reed"])):
            with pytest.raises(InvalidRequest):
                client.stream_token(topics_, scopes=scopes)
        assert "st_" not in repr(client.stream_token())
    answer = httpx.post(f"{url}/v0/tokens", json={"ttl_ms": 10**9}, headers=bearer("dash")).json()
    assert set(answer) == {"token", "expires_ts", "performance"}


def test_without_keys_a_token_is_given_and_nothing_asks_for_it(tmp_path: Path) -> None:
    with LiveServer(tmp_path) as live, client_of(f"http://127.0.0.1:{live.port}", "any") as client:
        token = client.stream_token(["a"]).token
        with socket(f"http://127.0.0.1:{live.port}", token) as opened:
            assert ask(opened, op="ping")["op"] == "pong"


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}
