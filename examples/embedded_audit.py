"""The engine as a library, without a server: a journal that survives `kill -9` and power cuts, and a router that copies
what matters into a second topic.

python examples/embedded_audit.py ./audit-data
"""

from __future__ import annotations

import argparse

import topics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="./audit-data")
    given = parser.parse_args()
    with topics.open(given.folder) as db:
        journal = db.topic("journal", durability="fsync")
        journal.configure(durability="fsync")
        db.router("journal->alarms").put("journal", "alarms", filter="alarm:*")
        journal.append({"door": "front", "state": "open"}, tag="event:door")
        journal.append_many(
            [
                topics.Event({"sensor": 7, "temperature": 91}, tag="alarm:heat"),
                topics.Event({"sensor": 8, "temperature": 20}, tag="event:heat"),
            ]
        )
        alarms = [record.value for record in db.topic("alarms").read()]
        print(f"{journal.state().count} entries in the journal, alarms: {alarms}")


if __name__ == "__main__":
    main()
