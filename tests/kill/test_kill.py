"""`kill -9` of a real writer, again and again; the oracle sits in this process and knows only what it was told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import topics

KILLS = int(os.environ.get("TOPICS_TEST_KILLS", "30"))
WRITER = Path(__file__).with_name("writer.py")
ACKS_BEFORE_KILL = 40


class Oracle:
    def __init__(self) -> None:
        self.acked: dict[str, dict[int, str]] = {"fsync": {}, "disk": {}}
        self.tried: dict[str, list[list[str]]] = {"fsync": [], "disk": []}

    def hear(self, line: str) -> bool:
        """One line of the writer; was it an ack?"""
        kind, name, *rest = line.split()
        if kind == "try":
            self.tried[name].append(rest)
            return False
        first_seq, tokens = int(rest[0]), rest[1:]
        for at, token in enumerate(tokens):
            assert first_seq + at not in self.acked[name], f"{name}: seq {first_seq + at} was acked twice"
            self.acked[name][first_seq + at] = token
        return True

    def judge(self, path: Path) -> None:
        with topics.open(str(path), wal_shards=2) as database:
            for name in ("fsync", "disk"):
                self._judge_topic(name, database)

    def _judge_topic(self, name: str, database: object) -> None:
        found = {record.seq: record.value for record in database.topic(name).read(gaps="yield")}  # type: ignore[attr-defined]
        if not self.tried[name]:
            return
        state = database.topic(name).state()  # type: ignore[attr-defined]
        for seq, token in self.acked[name].items():
            assert found.get(seq) == token, f"{name}: acked seq {seq} is {found.get(seq)!r}"
        assert sorted(found) == list(range(1, state.head_seq + 1)), f"{name}: a hole"
        by_token = {token: seq for seq, token in found.items()}
        assert len(by_token) == len(found), f"{name}: a record twice"
        for tokens in self.tried[name]:
            there = [by_token[token] for token in tokens if token in by_token]
            assert len(there) in (0, len(tokens)), f"{name}: half of a write: {tokens}"
            assert there == sorted(there)


@pytest.mark.timeout(300)
def test_nothing_acked_is_lost_by_killing_the_writer(tmp_path: Path) -> None:
    oracle = Oracle()
    for seed in range(KILLS):
        _write_and_kill(tmp_path / "data", seed, oracle)
        oracle.judge(tmp_path / "data")
    assert min(len(acked) for acked in oracle.acked.values()) > KILLS


def _write_and_kill(path: Path, seed: int, oracle: Oracle) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(topics.__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, str(WRITER), str(path), str(seed)], stdout=subprocess.PIPE, text=True, env=environment
    ) as writer:
        assert writer.stdout is not None
        acks = 0
        for line in writer.stdout:
            acks += oracle.hear(line) if line.endswith("\n") else 0
            if acks == ACKS_BEFORE_KILL + seed:
                # A moment that is not always right after an ack.
                time.sleep((seed % 7) * 0.0007)
                os.kill(writer.pid, signal.SIGKILL)
        assert acks >= ACKS_BEFORE_KILL, "the writer died by itself"
