"""Kombu transport: Celery, and whatever else speaks through kombu, on queues of a server.

    import topics.kombu
    app = Celery("shop", broker="topics://127.0.0.1:4000")   # with a key: topics://:KEY@host:4000

A message is a job; its ack, reject and requeue are those of the job, and its lease is kept while a worker holds it, so
a worker that dies loses nothing (with `task_acks_late`, not even what it had begun). `eta` and `countdown` become the
job's own time: such tasks wait in the queue and not in a worker. A message that is rejected without requeue goes to the
dead letters.

For each queue that a channel consumes, a thread waits in a claim and holds at most one job that nobody has taken yet.
Exchanges and bindings are kept in memory, as kombu's virtual transports do, so each process declares its own; there is
no fanout, so remote control (`celery inspect`) is to be switched off (`worker_enable_remote_control = False`).
"""

from __future__ import annotations

import logging
import queue as queues
import re
import threading
import time
from datetime import UTC, datetime
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, virtual

import topics
from topics.client import Client, Queue, connect
from topics.client.blocking_handles import run
from topics.client.jobs.claims import ThreadClaims
from topics.errors import TopicNotFound, TopicsError, Unreachable
from topics.model.results import Job

log = logging.getLogger("topics.kombu")

TRANSPORT_ALIASES["topics"] = "topics.kombu:KombuTransport"

DEFAULT_PORT = 4000
RETRY_S = 5.0
LOOK_S = 0.5  # between two looks of whoever waits; a message, or an ack that makes room for one, ends the wait
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._:-]")


def topic_name(queue: str, prefix: str = "") -> str:
    """Kombu's names may hold more than a topic's."""
    return prefix + _NOT_IN_NAMES.sub("-", queue)


class Lane:
    """One queue of a channel: the jobs that it holds and, once it is consumed, a thread that has the next one ready."""

    def __init__(self, queue: Queue, *, lease_ms: int | None, came: threading.Event) -> None:
        self._stop = threading.Event()
        self._claims = ThreadClaims(queue._verbs, node=None, lease_ms=lease_ms, stop=self._stop)
        self._came = came
        self._next: queues.SimpleQueue[Job] = queues.SimpleQueue()
        self._wanted = threading.Semaphore(1)
        self._consuming = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def consume(self) -> None:
        self._consuming.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._claim, name="topics-kombu", daemon=True)
            self._thread.start()

    def _claim(self) -> None:
        while not self._stop.is_set():
            if not self._consuming.wait(0.5) or not self._wanted.acquire(timeout=0.5):
                continue
            try:
                jobs = run(self._claims.take(1, wait=True))
            except TopicsError as error:
                log.warning("queue %r is consumed no longer: %s", self._claims.queue.name, error)
                return
            with self._lock:
                is_consumed = self._consuming.is_set()
                if jobs and is_consumed:
                    self._next.put(jobs[0])
                    self._came.set()
                    continue
            self._wanted.release()
            for job in jobs:
                self.reject(job, requeue=True)

    def cancel(self) -> None:
        """Nobody consumes any more: a job that is ready here goes back. Those that were taken stay."""
        with self._lock:
            self._consuming.clear()
        try:
            self.reject(self.take(), requeue=True)
        except queues.Empty:
            pass

    def take(self) -> Job:
        """The job that the thread has ready. Raises queue.Empty."""
        job = self._next.get_nowait()
        self._wanted.release()
        return job

    def get(self) -> Job:
        """A job that is there now. Raises queue.Empty."""
        jobs = run(self._claims.take(1, wait=False))
        if not jobs:
            raise queues.Empty
        return jobs[0]

    def ack(self, job: Job) -> None:
        self._claims.drop(job)
        run(self._claims.queue.ack([job], node=self._claims.node))

    def reject(self, job: Job, *, requeue: bool) -> None:
        self._claims.drop(job)
        final = not requeue
        run(self._claims.queue.nack([job], node=self._claims.node, delay_ms=0 if requeue else None, final=final))

    def close(self) -> None:
        """What was not acked is ready again at once."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)
        run(self._claims.end())


class KombuChannel(virtual.Channel):  # type: ignore[misc]
    """Messages are jobs; acks and rejects go to the server."""

    do_restore = False  # a job that was not acked is still in its queue
    supports_fanout = False
    from_transport_options = (*virtual.Channel.from_transport_options, "queue_name_prefix", "lease_ms")
    queue_name_prefix = ""
    lease_ms: int | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lanes: dict[str, Lane] = {}
        self._held: dict[str, tuple[Lane, Job]] = {}  # by delivery tag

    def _queue(self, queue: str) -> Queue:
        client: Client = self.connection.topics_client
        return client.queue(topic_name(queue, self.queue_name_prefix))

    def _lane(self, queue: str) -> Lane:
        if queue not in self._lanes:
            self._lanes[queue] = Lane(self._queue(queue), lease_ms=self.lease_ms, came=self.connection.came)
        return self._lanes[queue]

    # --- messages -------------------------------------------------------------------------------------------------

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        priority = message["properties"].get("priority")
        self._queue(queue).append(
            message, priority=None if priority is None else max(0, min(int(priority), 9)), deliver_at=_eta(message)
        )

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        lane = self._lane(queue)
        return self._message(lane, lane.get())

    def _get_and_deliver(self, queue: str, callback: Any) -> None:
        lane = self._lane(queue)
        lane.consume()
        callback(self._message(lane, lane.take()), queue)

    def _message(self, lane: Lane, job: Job) -> dict[str, Any]:
        message: dict[str, Any] = job.value
        message["properties"]["delivery_info"]["redelivered"] = job.deliveries > 1
        self._held[message["properties"]["delivery_tag"]] = (lane, job)
        return message

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue in self._lanes and queue not in self._active_queues:
            self._lanes[queue].cancel()

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        tags = list(self.qos._delivered) if multiple else [delivery_tag]
        for tag in tags[: tags.index(delivery_tag) + 1]:
            if (held := self._held.pop(tag, None)) is not None:
                held[0].ack(held[1])
            super().basic_ack(tag)
        self.connection.came.set()

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if (held := self._held.pop(delivery_tag, None)) is not None:
            held[0].reject(held[1], requeue=requeue)
        super().basic_reject(delivery_tag, requeue=False)  # it is in the queue, or a dead letter
        self.connection.came.set()

    def basic_recover(self, requeue: bool = False) -> None:
        for tag in list(self._held):
            self.basic_reject(tag, requeue=True)

    # --- queues ---------------------------------------------------------------------------------------------------

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        self._queue(queue).state(touch=False)  # which creates it

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        try:
            self.connection.topics_client.topic(topic_name(queue, self.queue_name_prefix)).state(touch=False)
        except TopicNotFound:
            return False
        return True

    def _size(self, queue: str) -> int:
        counters = self._queue(queue).state(touch=False).queue
        return 0 if counters is None else counters.ready + counters.delayed

    def _purge(self, queue: str) -> int:
        return self._queue(queue).purge().deleted

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        if (lane := self._lanes.pop(queue, None)) is not None:
            lane.close()
        self._queue(queue).drop()

    def close(self) -> None:
        if not self.closed:
            self._held.clear()
            for lane in self._lanes.values():
                try:
                    lane.close()
                except TopicsError as error:
                    log.info("jobs come back when their leases run out: %s", error)
            self._lanes.clear()
        super().close()


def _eta(message: dict[str, Any]) -> datetime | None:
    """When a Celery task is to run; a moment that cannot be read is the worker's to judge."""
    text = (message.get("headers") or {}).get("eta")
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


class KombuTransport(virtual.Transport):  # type: ignore[misc]
    Channel = KombuChannel
    default_port = DEFAULT_PORT
    driver_type = driver_name = "topics"
    state = virtual.BrokerState()
    connection_errors = (*virtual.Transport.connection_errors, Unreachable, OSError)
    channel_errors = (*virtual.Transport.channel_errors, TopicsError)
    implements = virtual.Transport.implements.extend(exchange_type=frozenset(["direct", "topic"]))

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.came = threading.Event()
        self.topics_client: Client | None = None

    def driver_version(self) -> str:
        return topics.__version__

    def establish_connection(self) -> Any:
        if self.topics_client is None:
            given = self.client
            scheme = "https" if given.ssl else "http"
            url = f"{scheme}://{given.hostname or '127.0.0.1'}:{given.port or DEFAULT_PORT}"
            client = connect(url, given.password or None, retry_s=RETRY_S)
            try:
                client.health()
            except BaseException:
                client.close()
                raise
            self.topics_client = client
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        client, self.topics_client = self.topics_client, None
        if client is not None:
            client.close()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """One message to its consumer, as soon as a thread has it. Raises socket.timeout."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self.came.clear()
            try:
                self.cycle.get(self._deliver, timeout=timeout)
            except queues.Empty:
                left_s = LOOK_S if deadline is None else deadline - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError from None
                self.came.wait(min(left_s, LOOK_S))
            else:
                return
