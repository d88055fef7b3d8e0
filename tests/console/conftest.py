"""For each module one server with a shop's data and somebody who goes on writing to it, and one browser.

Not for all modules together: while Playwright is open its event loop counts as running in this thread, and the tests of
other folders that follow on the same worker could not run one of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.console.pages import Api, Console, ServerProcess, a_browser, serving

CITIES = ("berlin", "lagos", "lima")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with a_browser() as made:
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("console"), segment_max_events="100") as made:
        api = Api(made)
        fill(api)
        over = threading.Event()
        writer = threading.Thread(target=keep_writing, args=(api, over))
        writer.start()
        try:
            yield made
        finally:
            over.set()
            writer.join()
            api.close()


def keep_writing(api: Api, over: threading.Event) -> None:
    """Some load, in a topic that no test looks at."""
    while not over.wait(0.1):
        api.write("background", *({"data": {"n": n}, "tag": f"b{n % 3}"} for n in range(50)))


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    made = Api(server)
    yield made
    made.close()


@pytest.fixture
def console(browser: Any, server: ServerProcess) -> Iterator[Callable[..., Console]]:
    """Makes pages; at the end each must have been quiet."""
    made: list[Console] = []

    def new(size: str = "desk", **options: Any) -> Console:
        made.append(Console(browser, server, size, **options))
        return made[-1]

    yield new
    for one in made:
        one.check_quiet()
        one.close()


def fill(api: Api) -> None:
    """Something of everything: logs with tags and numbers, a gap, a queue with a dead letter, routers."""
    api.call("PUT", "/v0/routers/shop.orders->audit", {"source": "shop.orders", "dest": "audit"})
    api.call("PUT", "/v0/routers/audit->archive", {"source": "audit", "dest": "archive", "filter": "order:b*"})
    orders = [
        {"data": {"user": f"u{n}", "amount": n * 1.5}, "tag": f"order:{CITIES[n % 3]}", "meta": {"trace": f"t{n}"}}
        for n in range(1, 301)
    ]
    api.write("shop.orders", *orders)
    api.call("POST", "/v0/topics/shop.orders/cursors/projection", {"position": 120})
    meta = {"kind": "spark", "query": "orders to lake", "batch": 7}
    api.call("POST", "/v0/topics/shop.orders/cursors/lake", {"position": 300, "meta": meta})
    api.write("gold.topics", {"data": {"topic": "shop.orders", "records": 300, "_batch": 1}})
    api.call("PUT", "/v0/topics/capped", {"cap_records": 5})
    api.write("capped", *range(12))
    fill_queue(api, "jobs")
    api.call("PUT", "/v0/schedules/often", {"topic": "ticks", "every_ms": 1000, "data": {"kind": "tick"}})
    api.call("PUT", "/v0/topics/full.up", {"cap_records": 1, "discard": "reject"})
    api.write("full.up", 1)
    api.call("PUT", "/v0/schedules/refused", {"topic": "full.up", "every_ms": 1000})


def fill_queue(api: Api, name: str) -> None:
    """Jobs in every state: one is done, one is a dead letter, two are held, one is delayed, the others are ready."""
    config = {"type": "queue", "max_deliveries": 2, "dead_letter": f"{name}.dead", "done": f"{name}.done"}
    api.call("PUT", f"/v0/topics/{name}", config)
    api.write(name, *({"data": {"job": n}, "tag": "mail"} for n in range(8)))
    done, dead = (
        one["$seq"] for one in api.call("POST", f"/v0/topics/{name}/claim", {"node": "worker-1", "max": 2})["claimed"]
    )
    api.call("POST", f"/v0/topics/{name}/ack", {"node": "worker-1", "seqs": [done], "results": [{"sent": True}]})
    api.call(
        "POST", f"/v0/topics/{name}/nack", {"node": "worker-1", "seqs": [dead], "error": "no mailbox", "final": True}
    )
    api.write(name, {"data": {"job": 9}, "tag": "later", "delay_ms": 3_600_000})
    api.call("POST", f"/v0/topics/{name}/claim", {"node": "worker-2", "max": 2, "lease_ms": 600_000})
