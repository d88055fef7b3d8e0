"""schemathesis against the live `/openapi.json`: no 5xx, no undocumented status, nothing but what the schemas say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from tests.api import schemathesis_hooks as hooks
from tests.api.server import LiveServer

import topics

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "a_wrong_body_is_refused",
)
EXAMPLES = "8"  # of each call, on top of some 1,300 that follow from the schemas
HERE = Path(__file__).parent


def fill(url: str) -> None:
    with topics.connect(url) as client:
        client.topic(hooks.LOG).append_many([{"n": n} for n in range(20)])
        jobs = client.queue(hooks.QUEUE, max_deliveries=2, dead_letter="fuzz-dead")
        jobs.append_many(list(range(20)))
        jobs.claim("holder", max=2, lease_ms=3_600_000)  # so that lists have a job with a lease
        client.router(hooks.ROUTER).put(hooks.LOG, "fuzz-copy")


@pytest.mark.timeout(300)
def test_nothing_comes_back_that_the_document_does_not_say(tmp_path: Path) -> None:
    with LiveServer(tmp_path / "data") as live:
        url = f"http://127.0.0.1:{live.port}"
        fill(url)
        described = requests.get(f"{url}/openapi.json", timeout=10).json()["paths"]
        done = subprocess.run(
            [
                str(Path(sys.executable).parent / "schemathesis"), "run", f"{url}/openapi.json",
                "--phases", "coverage,fuzzing", "--max-examples", EXAMPLES, "--generation-deterministic",
                "--request-timeout", "10", "--checks", ",".join(CHECKS),
                "--continue-on-failure", "--no-color", "--warnings", "off",
            ],
            cwd=tmp_path,
            env={**os.environ, "SCHEMATHESIS_HOOKS": str(HERE / "schemathesis_hooks.py")},
            capture_output=True,
            text=True,
            timeout=280,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    tested = re.search(r"Tested: (\d+)", done.stdout)
    assert tested is not None
    assert int(tested[1]) == sum(map(len, described.values())) - 1  # the document itself is not asked for
