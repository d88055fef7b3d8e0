"""The least a Python server can do for a write: what `bench_http.py` measures `topics serve` against.

    python bench/bare_handler.py PORT LOGFILE

The same libraries and the same order of work, and no engine: HTTP by httptools, JSON by msgspec, one frame with an XXH3
per record, one `pwrite` at the end of a turn of uvloop, then the answers. It looks at nothing: no routes, keys, limits,
classes, tags, reads, segments or recovery. Whoever asks it with an empty body gets an empty answer.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from collections.abc import Callable

import httptools
import msgspec
import uvloop
import xxhash

ANSWER = b'{"topic":"t","first_seq":%d,"last_seq":%d,"head_seq":%d,"count":%d,"created":false,"deduped":false}'
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
LOG_BYTES = 256 << 20

pack_head = struct.Struct("<BBQQQHHI").pack
pack_len = struct.Struct("<I").pack
pack_sum = struct.Struct("<Q").pack
Send = Callable[[bytes], None]


class Record(msgspec.Struct, gc=False):
    data: msgspec.Raw
    tag: str | None = None


class Write(msgspec.Struct):
    records: list[Record]


decode = msgspec.json.Decoder(Write).decode


class Turn:
    """What came since the last write."""

    def __init__(self, log: int, loop: asyncio.AbstractEventLoop) -> None:
        self._log = log
        self._loop = loop
        self._at = 0
        self._seq = 0
        self._frames: list[bytes] = []
        self._answers: list[tuple[Send, int, int]] = []

    def take(self, body: bytes, send: Send) -> None:
        records = decode(body).records
        frames, seq = self._frames, self._seq
        for record in records:
            seq += 1
            tag = b"" if record.tag is None else record.tag.encode()
            checked = pack_head(1, 0, 1, seq, 0, 0, len(tag), len(record.data)) + tag + bytes(record.data)
            frames += (pack_len(len(checked) + 8), checked, pack_sum(xxhash.xxh3_64_intdigest(checked)))
        if not self._answers:
            self._loop.call_soon(self.end)
        self._answers.append((send, self._seq + 1, seq))
        self._seq = seq

    def end(self) -> None:
        data, answers = b"".join(self._frames), self._answers
        self._frames, self._answers = [], []
        os.pwrite(self._log, data, self._at)
        self._at = (self._at + len(data)) % (LOG_BYTES // 2)
        for send, first, last in answers:
            text = ANSWER % (first, last, last, last - first + 1)
            send(RESPONSE % (len(text), text))


class Connection(asyncio.Protocol):
    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._parts: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._send: Send = transport.write  # type: ignore[attr-defined]
        self._parser = httptools.HttpRequestParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        parts, self._parts = self._parts, []
        self._turn.take(b"".join(parts) or b'{"records":[]}', self._send)


async def main(port: int, path: str) -> None:
    log = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(log, 0, LOG_BYTES)
    loop = asyncio.get_running_loop()
    turn = Turn(log, loop)
    server = await loop.create_server(lambda: Connection(turn), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), sys.argv[2]))
