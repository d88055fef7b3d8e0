"""One worker of `bench_queues.py`: claims and acks over one HTTP connection until the queue is empty.

    python bench/queue_worker.py HOST:PORT TOPIC NODE MAX

Waits for a line on stdin, then works; prints one JSON line with what it did. The standard library alone, so that eight
of them leave the server most of the machine: requests are built once, answers are searched, not parsed."""

from __future__ import annotations

import json
import re
import socket
import sys
import time

JOB = re.compile(rb'\{"\$seq":(\d+),"lease_id":"(lease_[0-9a-f]+)"')


class Connection:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._host = host.encode()
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""

    def post(self, path: bytes, body: bytes) -> bytes:
        head = b"POST %b HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._socket.sendall(head % (path, self._host, len(body)) + body)
        data = self._rest
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._socket.recv(1 << 16)
        length = int(re.search(rb"(?i)content-length: *(\d+)", data[:end])[1])  # type: ignore[index]
        while len(data) < end + 4 + length:
            data += self._socket.recv(1 << 16)
        assert data.startswith(b"HTTP/1.1 200"), data
        self._rest = data[end + 4 + length :]
        return data[end + 4 : end + 4 + length]


def main(address: str, topic: str, node: str, max_jobs: int) -> None:
    connection = Connection(address)
    base = f"/v0/topics/{topic}/".encode()
    claim = json.dumps({"node": node, "max": max_jobs, "lease_ms": 60_000}).encode()
    claim_s, ack_s, jobs = [], [], 0
    sys.stdin.readline()
    while True:
        began = time.perf_counter()
        found = JOB.findall(connection.post(base + b"claim", claim))
        claim_s.append(time.perf_counter() - began)
        if not found:
            break
        seqs = b",".join(seq for seq, _ in found)
        leases = b'","'.join(lease for _, lease in found)
        began = time.perf_counter()
        answer = connection.post(
            base + b"ack", b'{"node":"%b","seqs":[%b],"lease_ids":["%b"]}' % (node.encode(), seqs, leases)
        )
        ack_s.append(time.perf_counter() - began)
        assert b'"skipped":[]' in answer, answer
        jobs += len(found)
    print(json.dumps({"jobs": jobs, "claim_s": claim_s, "ack_s": ack_s, "ended": time.time()}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
