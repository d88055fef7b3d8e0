"""A worker process that goes on when its server is killed, and is killed itself.

    python tests/engine/queues/steady_worker.py HOST:PORT NODE

It claims jobs of the queue `jobs`, says what it got, and acks with the job's data as result. A line is one JSON array;
what is asked for is said before the call. Standard library only: it has to start quickly."""

from __future__ import annotations

import http.client
import json
import os
import random
import sys
import time
from typing import Any

LEASE_MS = 400


def say(*event: Any) -> None:
    os.write(1, json.dumps(event).encode() + b"\n")


def call(address: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """The answer, or None: the server is gone, and nobody knows what became of the call."""
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError):
        time.sleep(0.02)
        return None
    finally:
        connection.close()
    assert response.status in (200, 503), answer
    return answer if response.status == 200 else None


def work(address: str, node: str) -> None:
    chance = random.Random()
    while True:
        claim = {"node": node, "max": chance.randint(1, 3), "lease_ms": LEASE_MS, "wait_ms": 300}
        answer = call(address, "POST", "/v0/topics/jobs/claim", claim)
        jobs = [] if answer is None else answer["claimed"]
        for job in jobs:
            say("got", job["$seq"], job["$tag"], job["lease_id"], job["deadline"], job["data"])
        for job in jobs:
            time.sleep(chance.uniform(0, 0.01))
            say("ack", job["lease_id"])
            ack = {"node": node, "seqs": [job["$seq"]], "lease_ids": [job["lease_id"]], "results": [job["data"]]}
            call(address, "POST", "/v0/topics/jobs/ack", ack)


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2])
