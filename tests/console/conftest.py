"""One server with a shop's data, and one browser, for each module."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.console.pages import Api, Console, ServerProcess, serving

CITIES = ("berlin", "lagos", "lima")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("console"), segment_max_events="100") as made:
        api = Api(made)
        fill(api)
        api.close()
        yield made


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
    api.call("PUT", "/v0/topics/jobs", {"type": "queue", "max_deliveries": 1, "dead_letter": "jobs.dead"})
    api.write("jobs", *({"data": {"job": n}, "tag": "mail"} for n in range(8)))
    leased = api.call("POST", "/v0/topics/jobs/claim", {"node": "worker-1", "max": 1})["claimed"][0]["$seq"]
    api.call("POST", "/v0/topics/jobs/nack", {"node": "worker-1", "seqs": [leased]})
    api.call("POST", "/v0/topics/jobs/claim", {"node": "worker-2", "max": 2, "lease_ms": 600_000})
