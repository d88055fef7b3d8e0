"""The people of the shop: mailers who do its jobs, and two departments that read its orders.

python examples/shop_staff.py http://127.0.0.1:4000 --seconds 30

One mail in twelve fails, and some fail for good, so the queue has retries and dead letters. Billing reads every order
at once; the warehouse is slow, and its cursor falls behind: the console shows both.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Callable

from shop import open_queue

import topics

MAILERS = ("mailer-1", "mailer-2")
MAIL_S = 0.05
PACK_S = 0.2
POLL_S = 0.2


def do_jobs(shop: topics.Client, name: str, over: threading.Event) -> None:
    """Claims a few jobs at a time. A mail to one of the users never arrives."""
    queue = open_queue(shop)
    rng = random.Random(name)
    while not over.is_set():
        for job in queue.claim(name, max=4, wait_ms=500).claimed:
            over.wait(MAIL_S)
            if job.value["user"] == "user7":
                queue.nack([job], node=name, error="ValueError: no such mailbox", final=True)
            elif rng.random() < 1 / 12:
                queue.nack([job], node=name, error="ConnectionResetError: the mail server hung up")
            else:
                queue.ack([job], node=name, results=[{"sent_to": job.value["user"]}])


def read_orders(shop: topics.Client, name: str, pause_s: float, over: threading.Event) -> None:
    """Reads under a named cursor: with a pause one order after the other, else all that are there."""
    orders = shop.topic("shop.orders")
    cursor = orders.cursor(name)
    done = 0
    while not over.is_set():
        for order in orders.read(done, limit=1 if pause_s else 1000):
            done = order.seq
        cursor.commit(done)
        over.wait(pause_s or POLL_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:4000")
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    over = threading.Event()
    with topics.connect(given.url) as shop:
        roles: list[Callable[[], None]] = [lambda name=name: do_jobs(shop, name, over) for name in MAILERS]
        roles.append(lambda: read_orders(shop, "billing", 0.0, over))
        roles.append(lambda: read_orders(shop, "warehouse", PACK_S, over))
        staff = [threading.Thread(target=role) for role in roles]
        for one in staff:
            one.start()
        ends_at = time.monotonic() + given.seconds
        while time.monotonic() < ends_at and all(one.is_alive() for one in staff):
            time.sleep(POLL_S)
        over.set()
        for one in staff:
            one.join()


if __name__ == "__main__":
    main()
