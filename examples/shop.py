"""A small shop that writes events: orders, clicks and jobs, with tags, and a few that are malformed on purpose.

python examples/shop.py http://127.0.0.1:4000 --seconds 5
python examples/shop.py http://127.0.0.1:4000 --seconds inf --pause 1     until Ctrl-C, a round each second

`shop_staff.py` does the jobs and reads the orders.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator
from contextlib import suppress

import topics

CITIES = ("berlin", "lagos", "lima", "osaka", "quito")
PAGES = ("home", "search", "item", "cart", "checkout")
RECEIPT, REMINDER = "receipt", "reminder"
WAVE_S = 40.0  # amounts go up and down, so that a plot of them has a shape
DAY_S = 86_400.0


def user(rng: random.Random) -> str:
    return f"user{rng.randint(1, 99)}"


def orders(rng: random.Random, count: int) -> Iterator[topics.Event]:
    """One in twenty has an amount that is no number: the pipeline keeps those in quarantine."""
    for _ in range(count):
        city = rng.randrange(len(CITIES))
        level = 3 + 0.5 * math.sin(time.time() * 2 * math.pi / WAVE_S + city)
        amount: object = round(rng.lognormvariate(level, 0.4), 2)
        if rng.random() < 0.05:
            amount = "n/a"
        yield topics.Event({"type": "order", "user": user(rng), "amount": amount}, tag=f"order:{CITIES[city]}")


def clicks(rng: random.Random, count: int) -> Iterator[topics.Event]:
    for _ in range(count):
        page = rng.choice(PAGES)
        yield topics.Event(
            {"type": "click", "user": user(rng), "duration_ms": rng.randint(20, 900)}, tag=f"click:{page}"
        )


def jobs(rng: random.Random, count: int) -> Iterator[topics.Event]:
    """Receipts are sent at once, urgent ones first; a reminder waits up to a day."""
    for number in range(count):
        if number % 5 == 4:
            wait = rng.uniform(10, DAY_S)
            yield topics.Event({"type": REMINDER, "user": user(rng)}, tag=f"mail:{REMINDER}", delay=wait)
        else:
            urgent = 5 if rng.random() < 0.1 else None
            yield topics.Event({"type": RECEIPT, "user": user(rng)}, tag=f"mail:{RECEIPT}", priority=urgent)


def open_queue(shop: topics.Client) -> topics.Queue:
    """Three tries with growing pauses, then `shop.jobs.dead`; what was done is kept in `shop.jobs.done`."""
    return shop.queue(
        "shop.jobs",
        max_deliveries=3,
        dead_letter="shop.jobs.dead",
        done="shop.jobs.done",
        retry={"base_ms": 2000, "factor": 3.0},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:4000")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds between rounds of 150 events")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    total = 0
    with topics.connect(given.url) as shop, suppress(KeyboardInterrupt):
        queue = open_queue(shop)
        ends_at = time.monotonic() + given.seconds
        while True:
            shop.topic("shop.orders").append_many(orders(rng, 40))
            shop.topic("shop.clicks").append_many(clicks(rng, 100))
            queue.append_many(jobs(rng, 10))
            total += 150
            if time.monotonic() >= ends_at:
                break
            time.sleep(given.pause)
    print(f"{total} events written to shop.orders, shop.clicks and shop.jobs")


if __name__ == "__main__":
    main()
