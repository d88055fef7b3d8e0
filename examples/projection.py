"""Keeps a view up to date: follows a topic, remembers how far it got, and starts there the next time.

python examples/projection.py http://127.0.0.1:4000 orders --state /tmp/totals.json     goes on until Ctrl-C

Sums up the `total` of each record by its tag, as in the orders of the README.
The cursor is stored together with the view, in one step: after a crash nothing is counted twice and nothing is missed.
"""

from __future__ import annotations

import argparse
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import topics


class Totals:
    """Totals by tag, and the seq of the last record that is in them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        self.seq: int = kept.get("seq", 0)
        self.by_tag: dict[str, float] = kept.get("by_tag", {})

    def add(self, seq: int, tag: str, amount: float) -> None:
        self.by_tag[tag] = round(self.by_tag.get(tag, 0.0) + amount, 2)
        self.seq = seq

    def save(self) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps({"seq": self.seq, "by_tag": self.by_tag}))
        os.replace(fresh, self._path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:4000")
    parser.add_argument("topic", nargs="?", default="orders")
    parser.add_argument("--state", type=Path, default=Path("totals.json"))
    parser.add_argument("--once", action="store_true", help="stop at the head instead of waiting for more")
    given = parser.parse_args()
    totals = Totals(given.state)
    with topics.connect(given.url) as client, suppress(KeyboardInterrupt):
        topic = client.topic(given.topic)
        items = topic.read if given.once else topic.follow
        for item in items(totals.seq, gaps="yield"):
            if isinstance(item, topics.Gap):
                print(f"records {item.gap_from}..{item.gap_to} are gone ({item.reason}); the totals lack them")
                continue
            totals.add(item.seq, item.tag or "-", float(item.value["total"]))
            totals.save()
    print(f"up to record {totals.seq}: {totals.by_tag}")


if __name__ == "__main__":
    main()
