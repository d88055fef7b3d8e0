"""Clients of a server that is going to lose its disk: three writers and a reader, which say on stdout what they heard.

Run as `python -m tests.powercut.client SEED`. Each line of stdin is a port: a server is there. Each line of stdout is
a JSON list that begins with the time: what was tried, before it was sent; what was answered; what was read. An answer
whose line the oracle has not got counts as unknown. When the server stops answering, each thread says "down" and waits
for the next port."""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
from queue import Queue
from random import Random
from typing import Any

from tests.powercut.topics_under_load import THREADS, TOPICS

_mutex = threading.Lock()


def tell(*event: Any) -> None:
    line = json.dumps([time.monotonic(), *event]).encode() + b"\n"
    with _mutex:
        while line:
            line = line[os.write(1, line) :]


class Refused(Exception):
    """The server answered, and did not do it."""


class Caller:
    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=20)

    def close(self) -> None:
        self._http.close()

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body)
        self._http.request(method, path, data, {} if data is None else {"Content-Type": "application/json"})
        answer = self._http.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise Refused(f"{answer.status} {content[:200]!r}")
        return json.loads(content)


class Writer:
    """A thread that writes its own topics, one call at a time, so that the order of its calls is known."""

    def __init__(self, number: int, seed: int) -> None:
        self.number = number
        self.rng = Random(seed * 100 + number)
        self.names = [name for name, kind in TOPICS.items() if kind.writer == number]
        self.sent = 0

    def run(self, call: Caller) -> None:
        while True:
            name = self.rng.choice(self.names)
            try:
                self.step(call, name)
            except Refused as error:
                tell("refused", name, str(error))

    def step(self, call: Caller, name: str) -> None:
        kind = TOPICS[name]
        if name == "jobs" and self.rng.random() < 0.4:
            self.work(call, name)
        elif kind.deletes and self.rng.random() < 0.08:
            self.delete(call, name)
        else:
            self.write(call, name)

    def write(self, call: Caller, name: str) -> None:
        tag = self.rng.choice("abc")
        self.sent += 1
        stem = f"{self.number}.{self.rng.getrandbits(32):08x}.{self.sent}"
        tokens = [f"{stem}.{at}:{tag}" for at in range(self.rng.choice((1, 1, 1, 3, 12)))]
        tell("try", name, tokens)
        records = [{"data": token, "tag": tag} for token in tokens]
        done = call("POST", f"/v0/topics/{name}", {"records": records})
        tell("ack", name, done["first_seq"], tokens)

    def delete(self, call: Caller, name: str) -> None:
        if self.rng.random() < 0.5:
            by: dict[str, Any] = {"match": self.rng.choice("abc")}
        else:
            head = call("GET", f"/v0/topics/{name}")["head_seq"]
            by = {"before_seq": self.rng.randint(head // 2, head)}
        tell("deleting", name, by)
        call("POST", f"/v0/topics/{name}/delete", by)
        tell("deleted", name, by)

    def work(self, call: Caller, name: str) -> None:
        node = f"w{self.rng.getrandbits(16)}"
        claimed = call("POST", f"/v0/topics/{name}/claim", {"node": node, "max": 4, "lease_ms": 1000})["claimed"]
        seqs = [job["$seq"] for job in claimed if self.rng.random() < 0.8]
        tell("read", name, [[job["$seq"], job["data"]] for job in claimed], 0)
        if seqs:
            tell("deleting", name, {"seqs": seqs})
            acked = call("POST", f"/v0/topics/{name}/ack", {"node": node, "seqs": seqs})
            tell("deleted", name, {"seqs": [seq for seq in seqs if seq not in acked["skipped"]]})


class Reader:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed * 100 + 99)

    def run(self, call: Caller) -> None:
        while True:
            name = self.rng.choice(sorted(TOPICS))
            try:
                head = call("GET", f"/v0/topics/{name}")["head_seq"]
                cursor = max(0, head - self.rng.choice((1, 20, 100)))
                found = call("POST", f"/v0/topics/{name}/diff", {"from_seq": cursor, "limit": 200})
            except Refused as error:
                tell("refused", name, str(error))
                continue
            tell("read", name, [[record["$seq"], record["data"]] for record in found["records"]], found["earliest_seq"])


def serve(worker: Writer | Reader, ports: Queue[int]) -> None:
    while True:
        call = Caller(ports.get())
        try:
            worker.run(call)
        except (OSError, http.client.HTTPException, ValueError):
            tell("down")


def main(seed: int) -> None:
    workers: list[Writer | Reader] = [*(Writer(number, seed) for number in range(THREADS)), Reader(seed)]
    queues: list[Queue[int]] = [Queue() for _ in workers]
    for worker, ports in zip(workers, queues, strict=True):
        threading.Thread(target=serve, args=(worker, ports), daemon=True).start()
    for line in sys.stdin:
        for ports in queues:
            ports.put(int(line))


if __name__ == "__main__":
    main(int(sys.argv[1]))
