"""A writer process that is going to be killed: it appends for ever and says on stdout what was acked.

Run as `python tests/kill/writer.py DIR SEED`. One line per ack: topic, first seq, tokens. Pipes are unbuffered, so a
line that the parent has read was written after the ack; an ack whose line is lost counts as unknown."""

from __future__ import annotations

import os
import random
import sys

import topics


def main(path: str, seed: int) -> None:
    rng = random.Random(seed)
    database = topics.open(
        path,
        wal_shards=2,
        wal_file_bytes=1 << 16,
        segment_max_events=50,
        checkpoint_interval_ms=50,
        snapshot_interval_ms=100,
    )
    handles = {name: database.topic(name, durability=name) for name in ("fsync", "disk")}
    number = 0
    while True:
        name = rng.choice(("fsync", "disk", "disk"))
        tokens = [f"{seed}.{number}.{at}" for at in range(rng.choice((1, 1, 3, 20)))]
        number += 1
        os.write(1, f"try {name} {' '.join(tokens)}\n".encode())
        done = handles[name].append_many(tokens)
        os.write(1, f"ack {name} {done.first_seq} {' '.join(tokens)}\n".encode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
