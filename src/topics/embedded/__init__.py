"""The embedded library: the engine in your own process, with a directory and nothing else to run.

with topics.open("./topics-data") as db:
    db.topic("jobs").append({"id": 1}, tag="tenant42:1")
"""

from topics.embedded.database import Database, open_database
from topics.embedded.queue import Queue, Router
from topics.embedded.topic import Topic

__all__ = ["Database", "Queue", "Router", "Topic", "open_database"]
