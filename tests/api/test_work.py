"""`docs/spec/http-api.md#sec-19-6`: jobs as server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.api.client import Client
from tests.api.server import LiveServer


class Stream:
    """An open work stream, read frame by frame."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()

    def frame(self) -> dict[str, str]:
        fields: dict[str, str] = {}
        for line in self._lines:
            if not line:
                return fields
            name, _, value = line.partition(": ")
            fields[name] = value
        return fields

    def job(self) -> dict[str, Any]:
        frame = self.frame()
        assert frame["event"] == "job", frame
        job: dict[str, Any] = json.loads(frame["data"])
        assert frame["id"] == str(job["$seq"])
        return job


@pytest.fixture
def http(server: LiveServer, dialect: str) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=f"http://127.0.0.1:{server.port}", http1=dialect == "h1", http2=dialect == "h2c", timeout=20
    ) as made:
        yield made


def eventually(check: Any) -> None:
    """Something the server does when it notices; bounded, and not part of what is asserted."""
    for _ in range(200):
        if check():
            return
        time.sleep(0.02)
    raise AssertionError("it never happened")


def test_jobs_are_pushed_once_and_refilled_after_acks(client: Client, http: httpx.Client, topic: str) -> None:
    client.put(topic, type="queue")
    client.write(topic, {"data": {"to": "x"}, "tag": "t"}, 2, 3)
    with http.stream("GET", f"/v0/topics/{topic}/work?node=w&max=2") as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        stream = Stream(response)
        assert stream.frame() == {"retry": "2000"}
        first, second = stream.job(), stream.job()
        assert (first["topic"], first["$seq"], first["data"], first["$tag"]) == (topic, 1, {"to": "x"}, "t")
        assert second["$seq"] == 2
        assert client.state(topic)["queue"].items() >= {"ready": 1, "in_flight": 2, "dead_lettered": 0}.items()
        client.ok("POST", f"/v0/topics/{topic}/ack", {"node": "w", "seqs": [1], "lease_ids": [first["lease_id"]]})
        assert stream.job()["$seq"] == 3
        client.write(topic, 4)
        client.ok("POST", f"/v0/topics/{topic}/nack", {"node": "w", "seqs": [2]})
        assert stream.job()["$seq"] == 2


def test_closing_the_stream_releases_its_leases_and_no_others(client: Client, http: httpx.Client, topic: str) -> None:
    client.put(topic, type="queue")
    client.write(topic, 1, 2)
    client.ok("POST", f"/v0/topics/{topic}/claim", {"node": "w"})
    with http.stream("GET", f"/v0/topics/{topic}/work?node=w") as response:
        stream = Stream(response)
        stream.frame()
        assert stream.job()["$seq"] == 2
    http.close()  # httpx resets no HTTP/2 stream; with its connection the stream is gone in either dialect
    eventually(lambda: client.state(topic)["queue"]["in_flight"] == 1)
    job = client.ok("POST", f"/v0/topics/{topic}/claim", {"node": "v"})["claimed"][0]
    assert (job["$seq"], job["deliveries"]) == (2, 2)


def test_the_stream_ends_with_its_queue(client: Client, http: httpx.Client, topic: str) -> None:
    client.put(topic, type="queue")
    with http.stream("GET", f"/v0/topics/{topic}/work?node=w") as response:
        stream = Stream(response)
        stream.frame()
        client.ok("DELETE", f"/v0/topics/{topic}")
        frame = stream.frame()
        assert frame["event"] == "error"
        assert (json.loads(frame["data"])["code"], json.loads(frame["data"])["topic"]) == (409, topic)
        assert stream.frame() == {}


def test_a_worker_that_is_behind_hears_of_the_end_of_its_queue(client: Client, http: httpx.Client, topic: str) -> None:
    client.put(topic, type="queue")
    client.write(topic, *["x" * 500_000] * 20)
    with http.stream("GET", f"/v0/topics/{topic}/work?node=w&max=20") as response:
        stream = Stream(response)
        assert stream.frame() == {"retry": "2000"}
        eventually(lambda: client.state(topic)["queue"]["in_flight"] > 1)
        client.ok("DELETE", f"/v0/topics/{topic}")
        frame = stream.frame()
        while frame["event"] == "job":
            frame = stream.frame()
        assert json.loads(frame["data"])["code"] == 409
        assert stream.frame() == {}


def test_the_order_of_refusals(client: Client, topic: str) -> None:
    path = f"/v0/topics/{topic}/work"
    client.refused(client.send("GET", path, accept="application/json"), 406, "not_acceptable")
    client.refused(client.send("GET", path), 400, "invalid_request")
    client.refused(client.send("GET", f"{path}?node=w"), 404, "topic_not_found", {"topic": topic})
    client.put(topic)
    client.refused(client.send("GET", f"{path}?node=w"), 409, "not_a_queue", {"topic": topic})
