"""Clients as users have them run the README's HTTP examples: curl, requests, urllib3, httpx; HTTP/1.1 and HTTP/2."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import requests
import urllib3
from tests.clients.conftest import EXAMPLES

Answers = list[tuple[int, str]]
"""Status and body of each example, in order."""

TIMEOUT_S = 20
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed: apt-get install curl")


def by_curl(url: str, *flags: str, version: str) -> Answers:
    answers = []
    for example in EXAMPLES:
        told = ["--max-time", str(TIMEOUT_S), "-w", "\n%{http_code} %{http_version}", *flags]
        done = subprocess.run(
            [*example.words_at(url), *told], capture_output=True, text=True, timeout=TIMEOUT_S * 2, check=True
        )
        body, _, last = done.stdout.rpartition("\n")
        status, spoken = last.split()
        assert spoken == version
        answers.append((int(status), body))
    return answers


def by_requests(url: str) -> Answers:
    with requests.Session() as session:
        session.trust_env = False
        given = [
            session.request(e.method, url + e.path, headers=e.headers, data=e.body, timeout=TIMEOUT_S) for e in EXAMPLES
        ]
    assert {answer.headers["content-type"] for answer in given} == {"application/json"}
    return [(answer.status_code, answer.text) for answer in given]


def by_urllib3(url: str) -> Answers:
    with urllib3.PoolManager(timeout=TIMEOUT_S, retries=False) as pool:
        given = [pool.request(e.method, url + e.path, headers=e.headers, body=e.body) for e in EXAMPLES]
    return [(answer.status, answer.data.decode()) for answer in given]


def by_httpx(url: str, *, http2: bool) -> Answers:
    async def run() -> Answers:
        async with httpx.AsyncClient(http2=http2, http1=not http2, timeout=TIMEOUT_S, trust_env=False) as client:
            answers = []
            for e in EXAMPLES:
                answer = await client.request(e.method, url + e.path, headers=e.headers, content=e.body)
                assert answer.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
                answers.append((answer.status_code, answer.text))
            return answers

    return asyncio.run(run())


CLIENTS: dict[str, Callable[[str], Answers]] = {
    "curl": lambda url: by_curl(url, version="1.1"),
    "curl --http2-prior-knowledge": lambda url: by_curl(url, "--http2-prior-knowledge", version="2"),
    "requests": by_requests,
    "urllib3": by_urllib3,
    "httpx": lambda url: by_httpx(url, http2=False),
    "httpx, HTTP/2": lambda url: by_httpx(url, http2=True),
}


@pytest.mark.parametrize(
    "client", [pytest.param(name, marks=needs_curl if name.startswith("curl") else ()) for name in CLIENTS]
)
def test_the_readme_holds_for(client: str, url: str) -> None:
    answers = CLIENTS[client](url)
    assert [status for status, _ in answers] == [201, 200, 201, 200, 200, 200]
    wrote, read, made, queued, claimed, acked = (json.loads(body) for _, body in answers)
    assert wrote["seqs"] == [1, 2]
    assert '"data":{"id":1,"total":12.50}' in answers[1][1]
    assert (read["next_from_seq"], read["caught_up"], read["tombstone"]) == (2, True, None)
    assert made["config"]["type"] == "queue"
    assert queued["seqs"] == [1]
    assert [job["data"] for job in claimed["claimed"]] == [{"picture": "cat.jpg"}]
    assert (acked["acked"], acked["skipped"]) == (1, [])


def test_the_readme_has_the_examples_that_are_run() -> None:
    assert [example.path.removeprefix("/v0/topics/") for example in EXAMPLES] == [
        "orders", "orders/diff", "thumbnails", "thumbnails", "thumbnails/claim", "thumbnails/ack",
    ]  # fmt: skip


# --- streams, as these clients read them -----------------------------------------------------------------------------


def session_at(url: str) -> str:
    requests.post(f"{url}/v0/topics/orders", json={"records": [{"data": 1}, {"data": 2}]}, timeout=TIMEOUT_S)
    made = requests.post(f"{url}/v0/watch", json={"topics": {"orders": {}}}, timeout=TIMEOUT_S).json()
    return url + str(made["stream_url"])


def values_of(lines: list[str]) -> list[Any]:
    frames = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    return [record["data"] for frame in frames for record in frame.get("records", ())]


def until_caught_up(lines: Any) -> list[str]:
    seen = []
    for line in lines:
        seen.append(line)
        if seen[-2:-1] == ["event: caught-up"]:
            break
    return seen


def test_requests_reads_a_stream(url: str) -> None:
    with requests.get(session_at(url), stream=True, timeout=TIMEOUT_S) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert values_of(until_caught_up(answer.iter_lines(chunk_size=1, decode_unicode=True))) == [1, 2]


@pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
def test_httpx_reads_a_stream(url: str, http2: bool) -> None:
    with (
        httpx.Client(http2=http2, http1=not http2, timeout=TIMEOUT_S, trust_env=False) as client,
        client.stream("GET", session_at(url)) as answer,
    ):
        assert values_of(until_caught_up(answer.iter_lines())) == [1, 2]


@needs_curl
@pytest.mark.parametrize("flags", [[], ["--http2-prior-knowledge"]], ids=["HTTP/1.1", "HTTP/2"])
def test_curl_reads_a_stream(url: str, flags: list[str]) -> None:
    command = ["curl", "-sN", "--max-time", str(TIMEOUT_S), *flags, session_at(url)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as curl:
        assert curl.stdout is not None
        assert values_of(until_caught_up(line.rstrip("\n") for line in curl.stdout)) == [1, 2]
        curl.terminate()
