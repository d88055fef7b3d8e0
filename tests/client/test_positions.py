"""A stored position of another life is announced at every door, and one of this life is not (docs/loss.md)."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.api.live.sse_client import SseClient
from tests.api.server import LiveServer
from tests.ways import SETTINGS, TOLD, TOPIC, Told, Way, World, recreated_longer, shown
from websockets.sync.client import connect as ws_connect

import topics
from topics.errors import InvalidRequest, TopicNotFound
from topics.formats.segments.scan import scan_segment

Stored = Any


class Door:
    """How a reader stores where it is, and how it comes back. `most` items are wanted by those who would wait."""

    def store(self, data: Path) -> Stored:
        raise NotImplementedError

    def resume(self, data: Path, stored: Stored, most: int) -> Told:
        raise NotImplementedError


# --- over HTTP -------------------------------------------------------------------------------------------------------


class Diff(Door):
    def post(self, server: LiveServer, **body: Any) -> httpx.Response:
        return httpx.post(f"http://127.0.0.1:{server.port}/v0/topics/{TOPIC}/diff", json=body, timeout=20)

    def store(self, data: Path) -> Stored:
        with LiveServer(data) as server:
            return self.post(server).json()["next"]

    def resume(self, data: Path, stored: Stored, most: int) -> Told:
        told: Told = []
        with LiveServer(data) as server:
            while True:
                answer = self.post(server, from_seq=stored, limit=7)
                if answer.status_code == 404:
                    return ["gone"]
                page = answer.json()
                told += [page["tombstone"]["reason"]] if page["tombstone"] else []
                told += [record["$seq"] for record in page["records"]]
                stored = page["next"]
                if page["caught_up"]:
                    return told


class LongPoll(Diff):
    """One that may wait: it must not wait where there is something to tell."""

    def post(self, server: LiveServer, **body: Any) -> httpx.Response:
        return super().post(server, wait_ms=5, **body)


class Frames(Door):
    """The bulk endpoint, with a position in the query string."""

    def get(self, server: LiveServer, **query: Any) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{server.port}/v0/topics/{TOPIC}/frames", params=query, timeout=20)

    def store(self, data: Path) -> Stored:
        with LiveServer(data) as server:
            return self.get(server).headers["topics-next"]

    def resume(self, data: Path, stored: Stored, most: int) -> Told:
        with LiveServer(data) as server:
            answer = self.get(server, from_seq=stored)
        if answer.status_code == 404:
            return ["gone"]
        told: Told = []
        if "topics-tombstone" in answer.headers:
            told.append(json.loads(answer.headers["topics-tombstone"])["reason"])
        return [*told, *map(int, scan_segment(answer.content).seq)]


class Watch(Door):
    """A session that begins at a position."""

    def open(self, server: LiveServer, start: Stored, *, last_id: str | None = None) -> SseClient | None:
        url = f"http://127.0.0.1:{server.port}/v0/watch"
        made = httpx.post(url, json={"topics": {TOPIC: {"from_seq": start}}}, timeout=20)
        if made.status_code == 404:
            return None
        headers = None if last_id is None else {"last-event-id": last_id}
        return SseClient(server.port, made.json()["stream_url"], headers=headers)

    def hear(self, stream: SseClient) -> tuple[Told, dict[str, Any]]:
        told: Told = []
        while True:
            frame = stream.next()
            if frame.event == "caught-up":
                return told, frame.data
            told += [frame.data["reason"]] if frame.event == "tombstone" else []
            told += [record["$seq"] for record in frame.data.get("records", ())]

    def store(self, data: Path) -> Stored:
        with LiveServer(data) as server:
            opened = self.open(server, 0)
            assert opened is not None
            with opened as stream:
                return self.stored(stream)

    def stored(self, stream: SseClient) -> Stored:
        return self.hear(stream)[1]["next"]

    def resume(self, data: Path, stored: Stored, most: int) -> Told:
        with LiveServer(data) as server:
            opened = self.reopen(server, stored)
            if opened is None:
                return ["gone"]
            with opened as stream:
                return self.hear(stream)[0]

    def reopen(self, server: LiveServer, stored: Stored) -> SseClient | None:
        return self.open(server, stored)


class EventId(Watch):
    """The id of the last event, as a browser keeps it, given to a session that began behind the head."""

    def stored(self, stream: SseClient) -> Stored:
        self.hear(stream)
        return [line for line in stream.received.split(b"\n") if line.startswith(b"id: ")][-1][4:].decode()

    def reopen(self, server: LiveServer, stored: Stored) -> SseClient | None:
        cursors = json.loads(base64.urlsafe_b64decode(stored + "=="))
        return self.open(server, cursors[TOPIC], last_id=stored)


class Socket(Door):
    def hear(self, server: LiveServer, start: Stored) -> tuple[Told, dict[str, Any]]:
        told: Told = []
        with ws_connect(f"ws://127.0.0.1:{server.port}/v0/ws") as socket:
            socket.send(json.dumps({"op": "subscribe", "topic": TOPIC, "from_seq": start}))
            while True:
                message = json.loads(socket.recv(timeout=10))
                if message["op"] == "error":
                    return ["gone"], message
                if message["op"] == "caught_up":
                    return told, message
                told += [message["reason"]] if message["op"] == "tombstone" else []
                told += [record["$seq"] for record in message.get("records", ())]

    def store(self, data: Path) -> Stored:
        with LiveServer(data) as server:
            return self.hear(server, 0)[1]["next"]

    def resume(self, data: Path, stored: Stored, most: int) -> Told:
        with LiveServer(data) as server:
            return self.hear(server, stored)[0]


# --- the libraries and the command line ------------------------------------------------------------------------------


class Blocking(Door):
    def store(self, data: Path) -> Stored:
        with LiveServer(data) as server, topics.connect(f"http://127.0.0.1:{server.port}") as client:
            return list(client.topic(TOPIC).read())[-1].position

    def resume(self, data: Path, stored: Stored, most: int) -> Told:
        with LiveServer(data) as server, topics.connect(f"http://127.0.0.1:{server.port}") as client:
            try:
                return shown(self.items(client.topic(TOPIC), stored, most))
            except TopicNotFound:
                return ["gone"]

    def items(self, topic: Any, stored: Stored, most: int) -> list[Any]:
        return list(topic.read(stored, gaps="yield"))


class BlockingFollow(Blocking):
    def items(self, topic: Any, stored: Stored, most: int) -> list[Any]:
        return list(islice(topic.follow(stored, gaps="yield"), most))


class BlockingRecord(Blocking):
    """A record is a position, and so are a page and the answer to a write."""

    def store(self, data: Path) -> Stored:
        with LiveServer(data) as server, topics.connect(f"http://127.0.0.1:{server.port}") as client:
            return client.topic(TOPIC).page(0)


class Raising(Blocking):
    """Who does not ask for gaps gets an exception, and goes on from the position in it."""

    def items(self, topic: Any, stored: Stored, most: int) -> list[Any]:
        try:
            return list(topic.read(stored))
        except topics.DataLoss as loss:
            gap = topics.Gap(TOPIC, loss.gap_from, loss.gap_to, loss.reason)
            return [gap, *topic.read(loss.position)]


class Asyncio(Door):
    def store(self, data: Path) -> Stored:
        async def run(client: Any) -> Stored:
            return [record async for record in client.topic(TOPIC).read()][-1].position

        return self.run(data, run)

    def resume(self, data: Path, stored: Stored, most: int) -> Told:
        async def run(client: Any) -> Told:
            try:
                return shown(await self.items(client.topic(TOPIC), stored, most))
            except TopicNotFound:
                return ["gone"]

        told: Told = self.run(data, run)
        return told

    async def items(self, topic: Any, stored: Stored, most: int) -> list[Any]:
        return [item async for item in topic.read(stored, gaps="yield")]

    def run(self, data: Path, step: Callable[[Any], Any]) -> Any:
        async def run() -> Any:
            async with topics.aconnect(f"http://127.0.0.1:{server.port}") as client:
                return await step(client)

        with LiveServer(data) as server:
            return asyncio.run(run())


class AsyncioFollow(Asyncio):
    async def items(self, topic: Any, stored: Stored, most: int) -> list[Any]:
        got: list[Any] = []
        async for item in topic.follow(stored, gaps="yield"):
            got.append(item)
            if len(got) == most:
                break
        return got


class Embedded(Door):
    def store(self, data: Path) -> Stored:
        with topics.open(data, **SETTINGS) as db:
            return list(db.topic(TOPIC).read())[-1].position

    def resume(self, data: Path, stored: Stored, most: int) -> Told:
        with topics.open(data, **SETTINGS) as db:
            try:
                return shown(self.items(db.topic(TOPIC), stored, most))
            except TopicNotFound:
                return ["gone"]

    def items(self, topic: Any, stored: Stored, most: int) -> list[Any]:
        return list(topic.read(stored, gaps="yield"))


class EmbeddedFollow(Embedded):
    def items(self, topic: Any, stored: Stored, most: int) -> list[Any]:
        return list(islice(topic.follow(stored, gaps="yield"), most))


class CommandLine(Door):
    def run(self, server: LiveServer, *args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "topics.cli", "read", TOPIC, "--url", f"http://127.0.0.1:{server.port}", *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def store(self, data: Path) -> Stored:
        with LiveServer(data) as server:
            return json.loads(self.run(server, "--json").stdout.splitlines()[-1])["position"]

    def resume(self, data: Path, stored: Stored, most: int) -> Told:
        with LiveServer(data) as server:
            done = self.run(server, "--from", stored, "--gaps")
            if done.returncode:
                return ["gone"]
            lines = [json.loads(line) for line in done.stdout.splitlines()]
            told: Told = [line["gap"]["reason"] if "gap" in line else line["$seq"] for line in lines]
            assert self.run(server, "--from", stored).returncode == (3 if "recreated" in told else 0)
        return told


DOORS = [
    Diff(), LongPoll(), Frames(), Watch(), EventId(), Socket(), Blocking(), BlockingFollow(), BlockingRecord(),
    Raising(), Asyncio(), AsyncioFollow(), Embedded(), EmbeddedFollow(), CommandLine(),
]  # fmt: skip


@pytest.mark.parametrize("door", DOORS, ids=lambda door: type(door).__name__)
@pytest.mark.parametrize("way", TOLD, ids=lambda way: way.__name__)
def test_a_reader_that_comes_back_is_told_what_became_of_its_topic(tmp_path: Path, way: Way, door: Door) -> None:
    world = World(tmp_path)
    stored = door.store(world.data)
    way(world)
    assert door.resume(world.data, stored, len(TOLD[way])) == TOLD[way]


def test_a_bare_seq_still_works_and_cannot_know(tmp_path: Path) -> None:
    """The hole that docs/loss.md names: whoever stores a number alone reads on in a topic that is another one."""
    world = World(tmp_path)
    recreated_longer(world)
    with topics.open(world.data, **SETTINGS) as db:
        assert shown(list(db.topic(TOPIC).read(10, gaps="yield"))) == list(range(11, 21))
        assert shown(list(db.topic(TOPIC).read(30, gaps="yield"))) == ["recreated", *range(1, 21)]


@pytest.mark.parametrize("after", ["12", "12-", "x", "12-e", -1, None, 1.5])
def test_what_is_no_position_is_refused_at_the_library(tmp_path: Path, after: Any) -> None:
    with topics.open(tmp_path / "data") as db:
        db.topic(TOPIC).append(1)
        for use in (db.topic(TOPIC).read, db.topic(TOPIC).page):
            with pytest.raises(InvalidRequest):
                list(use(after))  # type: ignore[arg-type]


def test_what_is_no_position_is_refused_over_http(tmp_path: Path) -> None:
    World(tmp_path)
    with LiveServer(tmp_path / "data") as server:
        for bad in ("12", "12-e", "1-e1 ", "-e1"):
            answer = Diff().post(server, from_seq=bad)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
            assert "is not a position" in answer.json()["error"]["message"]
        assert Frames().get(server, from_seq="12-x").status_code == 400
