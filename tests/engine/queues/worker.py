"""A worker process that is going to be killed: it claims jobs, treats them well or badly, and says what it does.

    python tests/engine/queues/worker.py HOST:PORT NODE SEED claim|stream

A line is one JSON array. What is asked for is said before the call, what was answered after it, so whoever reads the
pipe knows of each call whether it may have happened (`ask`) and whether it did. Standard library only: it has to start
quickly."""

from __future__ import annotations

import http.client
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

LEASE_MS = 300
TREATMENTS = ["ack"] * 6 + ["nack", "delay", "extend", "linger", "linger", "forget"]


def say(*event: Any) -> None:
    os.write(1, json.dumps(event).encode() + b"\n")


class Worker:
    def __init__(self, address: str, node: str, seed: int) -> None:
        self._address = address
        self._node = node
        self._chance = random.Random(seed)
        self._http = http.client.HTTPConnection(address, timeout=20)

    def post(self, verb: str, **body: Any) -> Any:
        text = json.dumps({"node": self._node, **body})
        self._http.request("POST", f"/v0/topics/jobs/{verb}", text, {"Content-Type": "application/json"})
        response = self._http.getresponse()
        answer = json.loads(response.read())
        assert response.status == 200, answer
        return answer

    # --- where jobs come from -------------------------------------------------------------------------------------

    def claimed(self) -> Iterator[list[dict[str, Any]]]:
        while True:
            jobs = self.post("claim", max=self._chance.randint(1, 4), lease_ms=LEASE_MS)["claimed"]
            if not jobs:
                time.sleep(0.01)
            yield jobs

    def streamed(self) -> Iterator[list[dict[str, Any]]]:
        stream = http.client.HTTPConnection(self._address, timeout=20)
        path = f"/v0/topics/jobs/work?node={self._node}&max=4&lease_ms={LEASE_MS}"
        stream.request("GET", path, headers={"Accept": "text/event-stream"})
        response = stream.getresponse()
        while line := response.readline():
            if line.startswith(b'data: {"topic"'):
                yield [json.loads(line[6:])]

    # --- what becomes of them -------------------------------------------------------------------------------------

    def work(self, how: str) -> None:
        for jobs in self.claimed() if how == "claim" else self.streamed():
            for job in jobs:
                say("got", job["$seq"], job["lease_id"], job["deadline"], job["deliveries"], job["data"])
            for job in jobs:
                self.treat(job["$seq"], job["lease_id"], self._chance.choice(TREATMENTS))

    def treat(self, seq: int, lease_id: str, how: str) -> None:
        if how == "linger":  # until the lease is over and somebody else has the job
            time.sleep(LEASE_MS * 1.2 / 1000)
        if how in ("nack", "delay"):
            self.change("nack", seq, lease_id, delay_ms=50 if how == "delay" else 0)
        elif how == "extend":
            self.change("extend", seq, lease_id, lease_ms=LEASE_MS)
        if how in ("ack", "linger", "extend"):
            self.change("ack", seq, lease_id)

    def change(self, verb: str, seq: int, lease_id: str, **more: int) -> None:
        say("ask", verb, seq, lease_id)
        answer = self.post(verb, seqs=[seq], lease_ids=[lease_id], **more)
        taken = answer["skipped"] == []
        say(verb, seq, lease_id, taken, answer.get("deadlines", {}).get(str(seq), 0))


if __name__ == "__main__":
    Worker(sys.argv[1], sys.argv[2], int(sys.argv[3])).work(sys.argv[4])
