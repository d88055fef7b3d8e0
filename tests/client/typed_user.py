"""A program of a user: never run, only checked by `mypy --strict`, as a user would. What the README shows must pass."""

from __future__ import annotations

import topics
import topics.client
import topics.embedded


def through_a_server() -> None:
    with topics.connect("http://127.0.0.1:4000", api_key=None, timeout=5.0) as client:
        orders = client.topic("orders", durability="fsync")
        done = orders.append({"id": 1}, tag="t", node="n", meta={"a": 1})
        print(done.first_seq, done.last_seq, list(done.seqs))
        orders.append_many([1, topics.Event(2, tag="x"), topics.Json(b"1.50")])
        for record in orders.read(after=0):
            print(record.seq, record.value)
        for item in orders.follow(after=0, gaps="yield", exclude_nodes="me"):
            if isinstance(item, topics.Gap):
                print(item.gap_from, item.reason)
            else:
                print(item.seq, item.value["id"], item.tag, item.ts)
        page = orders.page(0, limit=5)
        for rec in page.records:
            print(rec.value)
        if page.tombstone is not None:
            print(page.tombstone.gap_to)
        print(orders.state().head_seq, orders.delete(before_seq=3).deleted, orders.configure(cap_records=1).cap_records)
        with orders.producer(linger_ms=2) as producer:
            producer.append({"n": 1})
            future = producer.submit({"n": 2})
            print(future.result())
            producer.append({"n": 3}, report=lambda delivery: print(delivery.seq, delivery.error))
            producer.flush()
        queue = client.queue("jobs", max_deliveries=5)

        @queue.worker(concurrency=2, until_empty=True)
        def send(job: topics.Job) -> None:
            print(job.value, job.seq, job.deliveries)

        send.run()
        for held in queue.work("w", until_empty=True):
            print(held.value, held.seq)
            held.ack()
        router = client.router("a->b")
        print(router.put("a", "b", filter="x*").source)
        for summary in client.topics("o"):
            print(summary.topic)
        try:
            list(orders.read(after=1))
        except topics.DataLoss as loss:
            print(loss.gap_from)
        except topics.Unreachable as away:
            print(away.sent)
        except topics.TopicsError as error:
            print(error.code, error.retryable)


def misspelt(client: topics.client.Client, aclient: topics.client.AsyncClient, db: topics.embedded.Database) -> None:
    """An ignored error that is none is an error itself, so each of these lines must be refused."""
    client.queue("jobs", max_delivries=9)  # type: ignore[call-arg]
    client.topic("orders", durability="fsink")  # type: ignore[arg-type]
    client.topic("orders").configure(cap_record=1)  # type: ignore[call-arg]
    client.queue("jobs").worker(concurency=8)  # type: ignore[call-arg]
    client.topic("orders").producer(linger=1)  # type: ignore[call-arg]
    aclient.queue("jobs", max_delivries=9)  # type: ignore[call-arg]
    db.queue("jobs", max_delivries=9)  # type: ignore[call-arg]
    client.topic("orders").append(1, tags="x")  # type: ignore[call-arg]


def in_this_process() -> None:
    with topics.open("./my-data", wal_shards=1) as db:
        jobs = db.topic("jobs")
        values: list[object] = [record.value for record in jobs.read()]
        print(values)
        queue = db.queue("q")

        @queue.worker()
        def work(job: topics.Job) -> None: ...

        work.run(signals=False)


async def for_coroutines() -> None:
    async with topics.aconnect("http://127.0.0.1:4000") as client:
        topic = client.topic("chat")
        await topic.append("hello")
        async for record in topic.follow(after=0):
            print(record.value)
        async for item in topic.read():
            print(item.seq)
        queue = client.queue("q")

        @queue.worker(concurrency=2)
        async def work(job: topics.Job) -> None: ...

        await work.run()
        async with topic.producer() as producer:
            await producer.append(1)
            print(await (await producer.submit(2)))


def readers(client: topics.client.Client, db: topics.embedded.Database) -> None:
    orders = client.topic("orders")
    done = orders.append({"id": 1}, tag="order:1", if_tag_seq=0)
    orders.append({"id": 1}, tag="order:1", if_tag_seq=done.last_seq)
    for record in orders.follow(cursor="billing", tag="order:*", commit="record", owner="me"):
        print(record.seq)
    for topic, found in client.follow(["orders", "payments"], cursor="audit"):
        print(topic, found.value)
    state = orders.cursor("billing").get()
    print(state.lag.records, state.lag.ms, orders.cursor("billing").commit(state.position, sync=True).moved)
    for reader in db.cursors("o"):
        print(reader.kind, reader.cursor, reader.lag.bytes)
    orders.follow(curser="billing")  # type: ignore[call-overload]
