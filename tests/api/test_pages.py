"""`docs/spec/http-api.md#sec-8-8` over real connections: rebinding, foreign pages, and pages that are listed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api.client import JSON_TYPE, Client
from tests.api.live.sse_client import SseClient
from tests.api.server import LiveServer
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

APP = "https://app.example.com"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("pages"), allowed_origins=APP) as live:
        yield live


def test_a_name_that_was_rebound_to_us_reaches_nothing(client: Client, topic: str) -> None:
    client.put(topic)
    for method, path, body in (
        ("GET", "/v0/topics", None),
        ("GET", f"/v0/topics/{topic}", None),
        ("POST", f"/v0/topics/{topic}", {"records": [{"data": 1}]}),
        ("DELETE", f"/v0/topics/{topic}", None),
        ("GET", "/console", None),
        ("GET", "/nowhere", None),
    ):
        answer = client.send(method, path, body, host="evil.example:4000")
        error = client.refused(answer, 403, "host_not_allowed")
        assert "TOPICS_ALLOWED_HOSTS" in error["message"]
    assert client.state(topic)["head_seq"] == 0
    assert client.send("GET", "/healthz", host="evil.example").status_code == 200


def test_the_bare_address_of_a_server_leads_to_its_console(client: Client) -> None:
    answer = client.send("GET", "/", None)
    assert (answer.status_code, answer.headers["location"]) == (303, "/console")
    assert "/openapi.json" in answer.text


def test_a_page_elsewhere_neither_writes_nor_deletes(client: Client, topic: str) -> None:
    client.put(topic)
    evil = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
    plain = client.raw("POST", f"/v0/topics/{topic}", content=b"{}", headers={"content-type": "text/plain", **evil})
    client.refused(plain, 403, "origin_not_allowed")
    client.refused(client.send("DELETE", f"/v0/topics/{topic}", None, **evil), 403, "origin_not_allowed")
    client.refused(client.send("GET", f"/v0/topics/{topic}/work?node=n", None, **evil), 403, "origin_not_allowed")
    answer = client.send("GET", "/v0/topics", None, **evil)
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert client.state(topic)["head_seq"] == 0


def test_a_page_elsewhere_opens_no_socket(server: LiveServer) -> None:
    url = f"ws://127.0.0.1:{server.port}/v0/ws"
    with pytest.raises(InvalidStatus) as refused, connect(url, origin=Origin("http://evil.example")):
        pass
    assert refused.value.response.status_code == 403
    for origin in (Origin(f"http://127.0.0.1:{server.port}"), Origin(APP), None):
        with connect(url, origin=origin) as ws:
            ws.send('{"op":"ping"}')
            assert json.loads(ws.recv(timeout=10))["op"] == "pong"


def test_a_listed_page_sees_every_answer(client: Client, server: LiveServer, topic: str, dialect: str) -> None:
    def seen(answer: object) -> None:
        headers = answer.headers  # type: ignore[attr-defined]
        assert headers["access-control-allow-origin"] == APP
        assert "Origin" in headers["vary"]

    asked = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    preflight = client.raw("OPTIONS", f"/v0/topics/{topic}", headers={"origin": APP, **asked})
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-headers"] == "content-type"
    seen(preflight)
    body = json.dumps({"records": [{"data": 1}]}).encode()
    for status in (201, 200, 200):  # the last ones repeat a head, which has a short way of its own
        written = client.raw("POST", f"/v0/topics/{topic}", content=body, headers={"origin": APP, **JSON_TYPE})
        assert written.status_code == status
        seen(written)
    seen(client.send("GET", "/v0/topics/absent", None, origin=APP))
    seen(client.send("PATCH", f"/v0/topics/{topic}", None, origin=APP))
    seen(client.send("POST", f"/v0/topics/{topic}/diff", {}, origin=APP))
    wid = client.ok("POST", "/v0/watch", {"topics": {topic: {}}}, origin=APP)["wid"]
    with SseClient(server.port, f"/v0/watch/{wid}", http2=dialect == "h2c", headers={"origin": APP}) as stream:
        seen(stream.response)
        stream.until(b"event: record")
    client.refused(
        client.send("OPTIONS", "/v0/topics", origin="http://evil.example", **asked), 405, "method_not_allowed"
    )


def test_with_keys_listed_pages_are_told_and_nobody_is_refused_for_a_name(tmp_path: Path, dialect: str) -> None:
    with LiveServer(tmp_path, api_keys="ops", allowed_origins=APP) as live:
        nobody = Client(live.port, http2=dialect == "h2c")
        asked = {"access-control-request-method": "PUT", "access-control-request-headers": "authorization"}
        assert nobody.raw("OPTIONS", "/v0/topics/t", headers={"origin": APP, **asked}).status_code == 200
        refused = nobody.send("PUT", "/v0/topics/t", {}, origin=APP)
        nobody.refused(refused, 401, "unauthorized")
        assert refused.headers["access-control-allow-origin"] == APP
        ops = Client(live.port, http2=dialect == "h2c", key="ops")
        assert ops.send("PUT", "/v0/topics/t", {}, host="any.example", origin="http://x.example").status_code == 201
        nobody.close()
        ops.close()
