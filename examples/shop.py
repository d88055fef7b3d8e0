"""A small shop that writes events: orders, clicks and jobs, with tags, and a few that are malformed on purpose.

python examples/shop.py http://127.0.0.1:4000 --seconds 5
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator

import topics

CITIES = ("berlin", "lagos", "lima", "osaka", "quito")
PAGES = ("home", "search", "item", "cart", "checkout")


def user(rng: random.Random) -> str:
    return f"user{rng.randint(1, 99)}"


def orders(rng: random.Random, count: int) -> Iterator[topics.Event]:
    """One in twenty has an amount that is no number: the pipeline keeps those in quarantine."""
    for _ in range(count):
        city = rng.choice(CITIES)
        amount: object = round(rng.lognormvariate(3, 0.8), 2)
        if rng.random() < 0.05:
            amount = "n/a"
        yield topics.Event({"type": "order", "user": user(rng), "amount": amount}, tag=f"order:{city}")


def clicks(rng: random.Random, count: int) -> Iterator[topics.Event]:
    for _ in range(count):
        page = rng.choice(PAGES)
        yield topics.Event(
            {"type": "click", "user": user(rng), "duration_ms": rng.randint(20, 900)}, tag=f"click:{page}"
        )


def jobs(rng: random.Random, count: int) -> Iterator[topics.Event]:
    for number in range(count):
        yield topics.Event({"type": "receipt", "user": user(rng)}, tag=f"mail:{number % 3}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:4000")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    with topics.connect(given.url) as shop:
        ends_at = time.monotonic() + given.seconds
        total = 0
        while True:
            shop.topic("shop.orders").append_many(orders(rng, 40))
            shop.topic("shop.clicks").append_many(clicks(rng, 100))
            shop.queue("shop.jobs").append_many(jobs(rng, 10))
            total += 150
            if time.monotonic() >= ends_at:
                break
            time.sleep(0.05)
        print(f"{total} events written to shop.orders, shop.clicks and shop.jobs")


if __name__ == "__main__":
    main()
