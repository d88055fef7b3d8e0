"""`GET /metrics` as Prometheus reads it (`docs/spec/http-api.md#sec-20-3`): its own parser, its own linter, and figures
that follow what was done."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.api.server import LiveServer

import topics
from topics.api.metrics.topic_survey import SEGMENTS_A_TOPIC, cost_of
from topics.client.client import Client

DEPRECATED = {
    "topics_uptime_ms",
    "topics_wal_fsync_latency_us",
    "topics_relocation_last_success_ms",
    "topics_kernel",
}


class Scraped:
    """One answer, by sample."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families = list(text_string_to_metric_families(text))
        self._samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families
            for sample in family.samples
        }

    def get(self, name: str, **labels: str) -> float | None:
        return self._samples.get((name, frozenset(labels.items())))


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path, cold_dir=str(tmp_path / "cold")) as server:
        yield server


@pytest.fixture
def db(live: LiveServer) -> Iterator[Client]:
    with topics.connect(f"http://127.0.0.1:{live.port}") as client:
        yield client


def scrape(live: LiveServer, path: str = "/metrics") -> Scraped:
    answer = httpx.get(f"http://127.0.0.1:{live.port}{path}")
    assert answer.status_code == 200
    return Scraped(answer.text)


def without_deprecated(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not any(name in line for name in DEPRECATED))


def test_both_addresses_give_the_same_families_and_each_parses(live: LiveServer) -> None:
    names = [[family.name for family in scrape(live, path).families] for path in ("/v0/metrics", "/metrics")]
    assert set(names[0]) <= set(names[1])  # the first scrape is itself counted in the second
    assert len(names[1]) == len(set(names[1])) > 60


def test_promtool_finds_nothing_but_the_names_that_are_going_away(live: LiveServer, db: Client) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: install Debian's package prometheus to run this")
    db.queue("jobs").append(1)
    text = scrape(live).text
    assert {name for name in DEPRECATED if f"# HELP {name} deprecated, use " in text} == DEPRECATED
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=without_deprecated(text), text=True, capture_output=True, timeout=30
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_answer_is_counted_by_endpoint_and_status_with_its_latency(live: LiveServer, db: Client) -> None:
    topic = db.topic("a")
    topic.append(0)  # creates it: 201
    with httpx.Client(base_url=f"http://127.0.0.1:{live.port}") as plain:
        for at in range(5):
            plain.post("/v0/topics/a", json={"records": [{"data": at}]})
        plain.post("/v0/topics/a", json={"records": []})
        plain.get("/v0/topics/absent")
        plain.get("/nowhere")
    found = scrape(live)
    total = "topics_http_requests_total"
    assert found.get(total, handler="write", code="201") == 1
    assert found.get(total, handler="write", code="200") == 5
    assert found.get(total, handler="write", code="400") == 1
    assert found.get(total, handler="get_topic", code="404") == 1
    assert found.get(total, handler="none", code="404") == 1
    duration = "topics_http_request_duration_seconds"
    assert found.get(duration + "_count", handler="write") == 7
    assert found.get(duration + "_bucket", handler="write", le="+Inf") == 7
    assert 0 < (found.get(duration + "_sum", handler="write") or 0) < 7 * 10


def test_deliveries_to_a_stream_are_counted_with_their_latency(live: LiveServer, db: Client) -> None:
    topic = db.topic("a")
    topic.append(1)
    with closing(topic.follow()) as following:  # type: ignore[type-var]
        assert next(following).seq == 1
        before = scrape(live).get("topics_delivery_duration_seconds_count") or 0
        for at in range(3):
            topic.append(at)
            assert next(following).seq == at + 2
    assert (scrape(live).get("topics_delivery_duration_seconds_count") or 0) >= before + 3


def test_a_queue_shows_its_oldest_job_and_that_it_is_paused(live: LiveServer, db: Client) -> None:
    queue = db.queue("jobs")
    queue.append(1)
    httpx.post(f"http://127.0.0.1:{live.port}/v0/topics/jobs/pause").raise_for_status()
    live.clock.ahead_ms += 5000
    found = scrape(live)
    assert 5 <= (found.get("topics_topic_queue_oldest_age_seconds", topic="jobs") or 0) < 60
    assert found.get("topics_topic_queue_paused", topic="jobs") == 1
    assert found.get("topics_topic_queue_ready", topic="jobs") == 1


def test_a_router_shows_what_it_copied_and_what_is_left(live: LiveServer, db: Client) -> None:
    db.topic("a").append(1)
    db.router("r").put(source="a", dest="b")
    for at in range(4):
        db.topic("a").append(at)
    found = scrape(live)
    assert found.get("topics_router_forwarded_total", router="r") == 4
    assert found.get("topics_router_lag_records", router="r") == 0
    assert found.get("topics_router_lag_seconds", router="r") == 0


def test_every_reader_shows_its_lag(live: LiveServer, db: Client) -> None:
    topic = db.topic("read")
    topic.append_many([1, 2, 3])
    topic.cursor("billing").commit(1)
    topic.cursor("done").commit(3)
    db.router("reader").put(source="read", dest="copy")
    live.clock.ahead_ms += 5000
    found = scrape(live)
    assert found.get("topics_cursor_lag_records", topic="read", cursor="billing", kind="cursor") == 2
    assert (found.get("topics_cursor_lag_seconds", topic="read", cursor="billing", kind="cursor") or 0) >= 5
    assert found.get("topics_cursor_lag_records", topic="read", cursor="done", kind="cursor") == 0
    assert found.get("topics_cursor_lag_records", topic="read", cursor="reader", kind="router") == 0


def test_the_process_and_its_disk_are_shown(live: LiveServer) -> None:
    scrape(live)
    found = scrape(live)
    assert (found.get("process_cpu_seconds_total") or 0) > 0
    assert (found.get("process_resident_memory_bytes") or 0) > 1 << 20
    assert 0 < (found.get("process_open_fds") or 0) < (found.get("process_max_fds") or 0)
    assert found.get("process_start_time_seconds") == scrape(live).get("process_start_time_seconds")
    assert 0 < (found.get("topics_data_dir_free_bytes") or 0) < (found.get("topics_data_dir_size_bytes") or 0)


def test_a_setting_bounds_the_topics_that_have_samples_of_their_own(tmp_path: Path) -> None:
    with LiveServer(tmp_path, metrics_topics=2) as live, topics.connect(f"http://127.0.0.1:{live.port}") as client:
        for name in "abc":
            client.topic(name).append(1)
        found = scrape(live)
    assert len(re.findall(r"^topics_topic_head_seq\{", found.text, re.MULTILINE)) == 2
    assert (found.get("topics_topic_metrics_truncated"), found.get("topics_topics")) == (1, 3)


def test_a_topic_with_many_segments_and_cursors_costs_as_much_as_many_topics() -> None:
    class Topic:
        sealed = range(8 * SEGMENTS_A_TOPIC)
        cursors = range(2 * SEGMENTS_A_TOPIC)

    assert cost_of(Topic()) == 11  # type: ignore[arg-type]


OPERATIONS = (Path(__file__).parents[2] / "docs/operations.md").read_text()


def test_the_reference_has_every_metric_with_its_type_and_meaning_and_no_other(live: LiveServer, db: Client) -> None:
    scrape(live)  # asks for the free space, which the next one shows
    text = scrape(live).text
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    shown = {(name, kinds[name], help) for name, help in re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE)}
    reference = OPERATIONS.partition("## Metrics reference")[2]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| [^|]*\| (.+) \|$", reference, re.MULTILINE)
    assert set(rows) == shown
    assert len(rows) == len(shown)


def test_every_alert_is_explained() -> None:
    rules = (Path(__file__).parents[2] / "deploy/alerts.yml").read_text()
    explained = re.findall(r"^\| `(Topics\w+)` \| .{60,} \|$", OPERATIONS, re.MULTILINE)
    assert explained == re.findall(r"alert: (\w+)", rules)
