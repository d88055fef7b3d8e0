"""The storage suite, as far as it touches real files, on a system that lacks the calls which only Linux has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITE = (
    "tests/storage/test_osfs.py", "tests/storage/test_data_dir_lock.py", "tests/storage/test_identity.py",
    "tests/storage/wal/test_append_and_sync.py", "tests/storage/segments/test_fetch.py", "tests/embedded/test_calls.py",
)  # fmt: skip
SERVER = """
import tests.storage.without_linux
from tests.api.server import LiveServer
import sys, topics
with LiveServer(sys.argv[1]) as live, topics.connect(f"http://127.0.0.1:{live.port}") as client:
    client.topic("a", durability="fsync").append_many(range(100))
    assert len(list(client.topic("a").read())) == 100
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    return subprocess.run([sys.executable, *words], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.timeout(320)
def test_the_storage_suite_passes() -> None:
    done = run("-m", "pytest", "-q", "-p", "tests.storage.without_linux", "-p", "no:cacheprovider", *SUITE)
    assert done.returncode == 0, done.stdout[-4000:]


def test_a_server_runs(tmp_path: Path) -> None:
    done = run("-c", SERVER, str(tmp_path))
    assert done.returncode == 0, done.stderr[-4000:]
