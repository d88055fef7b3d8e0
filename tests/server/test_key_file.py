"""Keys in a file, against a real process (`docs/spec/http-api.md#sec-8-9`): SIGHUP, expiry, refusals in the log."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from topics.errors import ConfigError
from topics.wire.access.key_file import parse_key_file
from topics.wire.access.keys import ALL_SCOPES, READ, Key, KeyRing, digest_of


class Process:
    """`topics serve` with a key file."""

    def __init__(self, home: Path, keys: str) -> None:
        self.file, self._log = home / "keys.toml", home / "log"
        self.file.write_text(keys)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")},
            "TOPICS_DATA_DIR": str(home / "data"),
            "TOPICS_PORT": "0",
            "TOPICS_PORT_FILE": str(home / "port"),
            "TOPICS_API_KEYS": "listed",
            "TOPICS_API_KEYS_FILE": str(self.file),
            "TOPICS_LOG_FORMAT": "json",
        }
        with self._log.open("w") as log:
            self._process = subprocess.Popen([sys.executable, "-m", "topics.cli", "serve"], env=environment, stderr=log)
        eventually(lambda: (home / "port").exists())
        self.url = "http://" + (home / "port").read_text().strip()
        eventually(lambda: any("ready:" in line["message"] for line in self.log()))

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def messages(self) -> list[str]:
        return [line["message"] for line in self.log()]

    def reload(self, keys: str) -> str:
        """The line that says what came of it."""
        before = len(self._outcomes())
        self.file.write_text(keys)
        self._process.send_signal(signal.SIGHUP)
        eventually(lambda: len(self._outcomes()) > before)
        return self._outcomes()[-1]

    def _outcomes(self) -> list[str]:
        return [it for it in self.messages() if it.startswith(("keys were read again", "the keys stay"))]

    def stop(self) -> None:
        self._process.terminate()
        assert self._process.wait(30) == 0


def eventually(condition: Callable[[], object], within_s: float = 30) -> None:
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


OPS = f'[ops]\nsha256 = "{sha256(b"ops-secret").hexdigest()}"\n'
DASH = '[dash]\nsecret = "dash-secret"\nscopes = "read"\nprefixes = ["eu."]\n'


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path, OPS + DASH)
    yield process
    process.stop()


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def test_a_key_comes_and_goes_with_sighup_on_connections_that_stay(process: Process) -> None:
    body = {"records": [{"data": 1}]}
    with (
        httpx.Client(base_url=process.url) as ops,
        httpx.Client(base_url=process.url) as listed,
        httpx.Client(base_url=process.url) as new,
    ):
        for _ in range(3):  # the second and third repeat a head, and take the short way
            assert ops.post("/v0/topics/t", json=body, headers=bearer("ops-secret")).is_success
        assert listed.post("/v0/topics/t", json=body, headers=bearer("listed")).is_success
        assert new.get("/v0/topics", headers=bearer("new-secret")).status_code == 401
        assert "removed or changed: ops" in process.reload(DASH + '[new]\nsecret = "new-secret"\n')
        assert ops.post("/v0/topics/t", json=body, headers=bearer("ops-secret")).status_code == 401
        assert listed.post("/v0/topics/t", json=body, headers=bearer("listed")).is_success
        assert new.get("/v0/topics", headers=bearer("new-secret")).status_code == 200


def test_writes_that_repeat_a_head_in_one_packet_see_that_their_key_has_ended(process: Process) -> None:
    """They take the short way past routing, which must not outlive the key."""
    body = b'{"records":[{"data":1}]}'
    head = b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ops-secret\r\n"
    write = head + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    host, _, port = process.url.removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as door:

        def status() -> bytes:
            door.sendall(write)
            return door.recv(65536).split(b" ", 2)[1]

        assert [status() for _ in range(4)] == [b"201", b"200", b"200", b"200"]
        process.reload(DASH)
        assert status() == b"401"


def test_a_file_with_a_mistake_changes_nothing(process: Process) -> None:
    said = process.reload(DASH.replace('"read"', '"reed"'))
    assert said.startswith("the keys stay as they were: ")
    assert "'dash' has an unknown scope" in said
    assert "dash-secret" not in "".join(process.messages())
    assert httpx.get(process.url + "/v0/topics", headers=bearer("ops-secret")).status_code == 200


def test_streams_and_sessions_of_a_key_that_ended_are_closed_and_others_stay(process: Process) -> None:
    with httpx.Client(base_url=process.url, timeout=30) as client:
        client.put("/v0/topics/eu.t", json={}, headers=bearer("ops-secret")).raise_for_status()
        sessions = {}
        for secret in ("dash-secret", "ops-secret"):
            watch = client.post("/v0/watch", json={"topics": {"eu.t": {}}}, headers=bearer(secret))
            sessions[secret] = watch.json()["stream_url"]
        with (
            client.stream("GET", sessions["dash-secret"], headers=bearer("dash-secret")) as ended,
            client.stream("GET", sessions["ops-secret"], headers=bearer("ops-secret")) as stays,
        ):
            assert (ended.status_code, stays.status_code) == (200, 200)
            process.reload(OPS + DASH.replace('["eu."]', '["us."]'))
            with pytest.raises(httpx.TransportError):
                for _ in ended.iter_raw():
                    pass
            client.post("/v0/topics/eu.t", json={"records": [{"data": 7}]}, headers=bearer("ops-secret"))
            assert any(b'"data":7' in chunk for chunk in stays.iter_raw())
        assert client.get(sessions["dash-secret"], headers=bearer("dash-secret")).status_code == 401
        assert client.get("/v0/topics/eu.t", headers=bearer("dash-secret")).status_code == 403


def test_a_key_expires_while_the_server_runs_and_the_log_names_it(process: Process) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=2)
    process.reload(OPS + DASH + f"expires = {soon.isoformat()}\n")
    asked = {"headers": bearer("dash-secret")}
    assert httpx.get(process.url + "/v0/topics", **asked).status_code == 200  # type: ignore[arg-type]
    eventually(lambda: "key dash has expired" in process.messages())
    assert httpx.get(process.url + "/v0/topics", **asked).status_code == 401  # type: ignore[arg-type]
    assert any("key dash (expired)" in message for message in process.messages())


def test_each_refusal_is_a_line_with_the_name_and_never_the_secret_until_there_are_too_many(process: Process) -> None:
    with httpx.Client(base_url=process.url) as client:
        client.get("/v0/topics/eu.t?token=query-secret")
        client.get("/v0/topics/us.t", headers=bearer("dash-secret"))
        client.get("/v0/topics", headers=bearer("guessed"))
        lines = [line for line in process.log() if line["message"].startswith("refused")]
        assert [(line["level"], line["message"].split(",")[0]) for line in lines] == [
            ("warning", "refused 401: key none"),
            ("warning", "refused 403: key dash"),
            ("warning", "refused 401: key unknown"),
        ]
        assert "GET /v0/topics/us.t: the key does not permit this name" in lines[1]["message"]
        for _ in range(40):
            client.get("/v0/topics", headers=bearer("guessed"))
    written = [message for message in process.messages() if message.startswith("refused")]
    assert 20 <= len(written) < 43
    assert not any(secret in "".join(process.messages()) for secret in ("query-secret", "dash-secret", "guessed"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[a]\n", "needs either secret or sha256"),
        ('[a]\nsecret = "s"\nsha256 = "00"\n', "needs either secret or sha256"),
        ('[a]\nsha256 = "hidden"\n', "not 64 hexadecimal digits"),
        ('[a]\nsecret = ""\n', "empty secret"),
        ('[a]\nsecret = "hidden"\nscope = "read"\n', "a field that is not understood"),
        ('[a]\nsecret = "hidden"\nscopes = "reed"\n', "unknown scope"),
        ('[a]\nsecret = "hidden"\nprefixes = [""]\n', "empty prefix"),
        ('["a b"]\nsecret = "hidden"\n', "needs a name"),
        ('secret = "hidden"\n', "a field that is not understood"),
        ("[a\nhidden", "not TOML"),
    ],
)
def test_what_is_not_understood_refuses_the_whole_file_without_a_secret(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_key_file(text, "keys.toml")
    assert why in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_a_key_file_gives_keys_with_names_and_an_end() -> None:
    ops, dash = parse_key_file(OPS + DASH + "expires = 1970-01-01T00:00:05\n", "keys.toml")
    assert ops == Key(digest_of("ops-secret"), ALL_SCOPES, (), "ops")
    assert dash == Key(digest_of("dash-secret"), READ, ("eu.",), "dash", 5000)


def test_a_key_that_is_as_it_was_stays_current() -> None:
    ring = KeyRing(parse_key_file(OPS + DASH, "keys.toml"))
    ops, dash = ring
    assert ring.replace(parse_key_file(OPS + DASH.replace("read", "rw"), "keys.toml")) == [dash]
    assert (ring.is_current(ops), ring.is_current(dash)) == (True, False)
