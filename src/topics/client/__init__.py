"""Clients of a server: blocking (`connect`) and for asyncio (`aconnect`), with the verbs of the embedded library."""

from topics.client.client import Client, connect
from topics.client.topic import Queue, Router, Topic

__all__ = ["Client", "Queue", "Router", "Topic", "connect"]
