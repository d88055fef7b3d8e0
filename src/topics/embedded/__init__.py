"""The embedded library: the engine in your own process, with a directory and nothing else to run.

    with topics.open("./topics-data") as db:
        db.topic("jobs").append({"id": 1}, tag="tenant42:1")

Modules, in reading order:

    database      Database, Topic, Queue: an open data directory and its handles
    engine_door   the verbs of `client.verbs`, carried out by the engine
    commands       the table of the functions that carry out verbs
    queue_commands those of queues
    engine_follow readers that wait at the head of topics
    views         stored records as the values that users see
    stored_tables stored records as an Arrow table

The verbs themselves are those of the clients. Never speaks HTTP and never opens a socket.
"""

from topics.client.blocking_handles import Cursor, Router, Schedule
from topics.embedded.database import Database, Queue, Topic, open_database

__all__ = ["Cursor", "Database", "Queue", "Router", "Schedule", "Topic", "open_database"]
