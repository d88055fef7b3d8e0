"""walk.py: how far a reader must walk to follow one call through the source.

Runs four paths on the real classes and prints, for each, how many files of `src/topics` it enters and how often a call
enters another file than the last one (each thread for itself; returns are not counted). Both figures fall when what
belongs together stands together. `docs/architecture.md` holds them.

    python scripts/walk.py              a table
    python scripts/walk.py --files      and the files of each path, with how often each was entered
    python scripts/walk.py --json       one JSON object
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
SOURCE = str(ROOT / "src" / "topics") + "/"


@dataclass
class Walk:
    """What one path entered: how often each file was entered from another one."""

    name: str
    entered: Counter[str] = field(default_factory=Counter)

    @property
    def files(self) -> int:
        return len(self.entered)

    @property
    def changes(self) -> int:
        return self.entered.total()


class Walker:
    """A profile function for all threads; counts only while a walk is under way."""

    def __init__(self) -> None:
        self._walk: Walk | None = None
        self._here: dict[int, str] = {}
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def _event(self, frame: FrameType, event: str, _argument: object) -> None:
        walk = self._walk
        if walk is None or event != "call":
            return
        name = frame.f_code.co_filename
        if not name.startswith(SOURCE):
            return
        thread = threading.get_ident()
        if self._here.get(thread) != name:
            self._here[thread] = name
            walk.entered[name.removeprefix(SOURCE)] += 1

    @contextmanager
    def walk(self, name: str, into: list[Walk]) -> Iterator[None]:
        walk = Walk(name)
        self._here.clear()
        self._walk = walk
        try:
            yield
        finally:
            self._walk = None
            into.append(walk)


MAKE = """
import os, sys, topics
folder = sys.argv[1]
with topics.open(folder, segment_max_events=100) as db:
    for _ in range(2):
        db.topic("t").append_many([{"n": n} for n in range(100)])
db = topics.open(folder, segment_max_events=100)
db.topic("t").append_many([{"n": n} for n in range(50)])
os._exit(0)
"""


def poster(port: int) -> Callable[[str, Any], Any]:
    """A new connection to the server, as a function that posts one JSON body. Head and body go in one packet, or it
    would be chance in how many the server gets them."""
    link = socket.create_connection(("127.0.0.1", port))

    def post(path: str, body: Any) -> Any:
        text = json.dumps(body)
        fields = f"host: walk\r\ncontent-type: application/json\r\ncontent-length: {len(text)}"
        link.sendall(f"POST {path} HTTP/1.1\r\n{fields}\r\n\r\n{text}".encode())
        answer = http.client.HTTPResponse(link, method="POST")
        answer.begin()
        assert answer.status == 200, answer.read()
        return json.loads(answer.read())

    return post


def walk_all(walker: Walker, folder: Path) -> list[Walk]:
    """The four paths over a directory with sealed segments whose last process was killed."""
    from tests.api import server as contract_server
    from tests.spark.world import read_path

    walks: list[Walk] = []
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", MAKE, str(folder)], check=True, env=environ)
    with walker.walk("Spark: plan and scan of a directory", walks):
        assert read_path(str(folder), "t").num_rows == 250

    recover = contract_server.recover

    def walked_recover(*given: Any, **named: Any) -> Any:
        with walker.walk("recovery after a kill", walks):
            return recover(*given, **named)

    contract_server.recover = walked_recover
    with contract_server.LiveServer(folder, segment_max_events=100) as server:

        def turn_over() -> None:
            """An answer leaves before the turn that gave it ends."""
            server.on_loop(lambda: None)

        server.on_loop(lambda: server.driver.attach(flush=server.kernel.flush, tick=lambda: None))  # nor is the clock's
        first = poster(server.port)
        first("/v0/topics/t/diff", {"from_seq": 0, "limit": 1})
        for _ in range(2):
            first("/v0/topics/t", {"records": [{"data": 1}]})
        second = poster(server.port)
        second("/v0/topics/t/diff", {"from_seq": 249, "limit": 1})  # the connection itself is not part of the path
        turn_over()
        with walker.walk("POST of one record", walks):
            second("/v0/topics/t", {"records": [{"data": 1}]})
            turn_over()
        first("/v0/topics/t/diff", {"from_seq": 249, "limit": 1})  # what the POST left to do is no part of the diff
        turn_over()
        with walker.walk("diff of one record of old history", walks):
            second("/v0/topics/t/diff", {"from_seq": 5, "limit": 1})
            turn_over()
    contract_server.recover = recover
    return walks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="list the files of each path")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    wanted = parser.parse_args()
    walker = Walker()
    with tempfile.TemporaryDirectory(prefix="topics-walk-") as folder:
        walks = walk_all(walker, Path(folder) / "data")
    if wanted.json:
        print(json.dumps({walk.name: {"files": walk.files, "changes": walk.changes} for walk in walks}))
        return
    print(f"{'path':40} {'files':>6} {'changes':>8}")
    for walk in walks:
        print(f"{walk.name:40} {walk.files:6} {walk.changes:8}")
        if wanted.files:
            for name, count in walk.entered.most_common():
                print(f"    {count:5}  {name}")


if __name__ == "__main__":
    main()
