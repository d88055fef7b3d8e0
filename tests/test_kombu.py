"""The kombu transport: messages are jobs, and a real Celery app runs on it. Kombu's own tests for transports were run
against it as well; `topics.kombu` says what it does not offer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest
from tests.api.server import LiveServer

import topics
import topics.kombu

pytestmark = pytest.mark.timeout(90)

TASKS = """
import time
from pathlib import Path
import topics.kombu
from celery import Celery

app = Celery("shop", broker="topics://127.0.0.1:{port}")
app.conf.worker_enable_remote_control = False
app.conf.task_acks_late = True
app.conf.task_default_queue = "celery.test"

@app.task(bind=True, max_retries=3)
def work(self, name):
    with open("done.txt", "a") as done:
        done.write(f"{{name}}-{{self.request.retries}}\\n")
    if name == "flaky" and self.request.retries < 1:
        raise self.retry(countdown=0.1)
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with LiveServer(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture
def connection(live: LiveServer) -> Iterator[Any]:
    with kombu.Connection(f"topics://127.0.0.1:{live.port}") as made:
        yield made


def publish(connection: Any, queue: Any, body: Any, **properties: Any) -> None:
    connection.Producer().publish(
        body, exchange=queue.exchange, routing_key=queue.routing_key, declare=[queue], **properties
    )


def drained(connection: Any, queue: Any, count: int, settle: Any) -> list[Any]:
    bodies: list[Any] = []

    def take(body: Any, message: Any) -> None:
        bodies.append(body)
        settle(message)

    with connection.Consumer([queue], callbacks=[take]):
        while len(bodies) < count:
            connection.drain_events(timeout=10)
    return bodies


def test_an_acked_message_is_gone_and_a_requeued_one_comes_again(live: LiveServer, connection: Any) -> None:
    queue = kombu.Queue("k1", kombu.Exchange("k1"), routing_key="k1")
    for number in range(3):
        publish(connection, queue, {"n": number})
    assert drained(connection, queue, 1, lambda message: message.requeue()) == [{"n": 0}]
    bodies = drained(connection, queue, 3, lambda message: message.ack())
    assert sorted(body["n"] for body in bodies) == [0, 1, 2]
    with topics.connect(f"http://127.0.0.1:{live.port}") as client:
        assert client.queue("k1").state().count == 0


def test_a_rejected_message_is_a_dead_letter(live: LiveServer, connection: Any) -> None:
    queue = kombu.Queue("k2", kombu.Exchange("k2"), routing_key="k2")
    publish(connection, queue, "bad")
    drained(connection, queue, 1, lambda message: message.reject())
    with topics.connect(f"http://127.0.0.1:{live.port}") as client:
        assert len(list(client.queue("k2").dead_letters().read())) == 1


def test_a_higher_priority_comes_first(connection: Any) -> None:
    queue = kombu.Queue("k3", kombu.Exchange("k3"), routing_key="k3")
    for body, priority in (("low", 1), ("high", 9), ("usual", 5)):
        publish(connection, queue, body, priority=priority)
    assert drained(connection, queue, 3, lambda message: message.ack()) == ["high", "usual", "low"]


def test_what_was_not_acked_is_ready_again_when_its_connection_closes(live: LiveServer, connection: Any) -> None:
    queue = kombu.Queue("k4", kombu.Exchange("k4"), routing_key="k4")
    publish(connection, queue, "held")
    with kombu.Connection(f"topics://127.0.0.1:{live.port}") as other:
        drained(other, queue, 1, lambda message: None)
    assert drained(connection, queue, 1, lambda message: message.ack()) == ["held"]


def test_a_server_that_is_not_there_is_told() -> None:
    nowhere = kombu.Connection("topics://127.0.0.1:1", transport_options={"max_retries": 1})
    with pytest.raises(topics.Unreachable):
        nowhere.connect()


def test_a_celery_app_runs_its_tasks_retries_and_countdowns(live: LiveServer, tmp_path: Path) -> None:
    (tmp_path / "celery_tasks.py").write_text(TASKS.format(port=live.port))
    source = os.pathsep.join([str(tmp_path), str(Path(topics.__file__).parents[1])])
    environ = {**os.environ, "PYTHONPATH": source}
    send = (
        "from celery_tasks import work\n"
        "for name in ('a', 'flaky'): work.delay(name)\n"
        "work.apply_async(['later'], countdown=3600)"
    )
    subprocess.run([sys.executable, "-c", send], cwd=tmp_path, env=environ, check=True, timeout=60)
    with topics.connect(f"http://127.0.0.1:{live.port}") as client:
        counters = client.queue("celery.test").state().queue
        assert counters is not None
        assert (counters.ready, counters.delayed) == (2, 1)  # the countdown is the queue's
        command = ["-m", "celery", "-A", "celery_tasks", "worker", "-P", "solo", "--without-gossip", "--without-mingle"]
        worker = subprocess.Popen([sys.executable, *command], cwd=tmp_path, env=environ)
        try:
            done = tmp_path / "done.txt"
            deadline = time.monotonic() + 60
            while (
                not done.exists() or len(done.read_text().split()) < 3 or client.queue("celery.test").state().count > 1
            ):
                assert time.monotonic() < deadline, done.read_text() if done.exists() else "nothing was done"
                time.sleep(0.05)
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(30)
        assert sorted(done.read_text().split()) == ["a-0", "flaky-0", "flaky-1"]
        counters = client.queue("celery.test").state().queue
        assert counters is not None
        assert (counters.ready, counters.in_flight, counters.delayed) == (0, 0, 1)
