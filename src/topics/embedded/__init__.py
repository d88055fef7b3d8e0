"""The embedded library: the engine in your own process, with a directory and nothing else to run.

    with topics.open("./topics-data") as db:
        db.topic("jobs").append({"id": 1}, tag="tenant42:1")

Modules, in reading order:

    database      Database, Topic, Queue: an open data directory and its handles
    engine_door   the verbs of `client.verbs`, carried out by the engine
    views         stored records as the values that users see

The verbs themselves are those of the clients. Never speaks HTTP and never opens a socket.
"""

from topics.client.blocking_handles import Router
from topics.embedded.database import Database, Queue, Topic, open_database

__all__ = ["Database", "Queue", "Router", "Topic", "open_database"]
