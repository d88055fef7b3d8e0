"""Clients of a server: blocking (`connect`) and for asyncio (`aconnect`), with the verbs of the embedded library."""

from topics.client.aclient import AsyncClient, aconnect
from topics.client.atopic import AsyncQueue, AsyncRouter, AsyncTopic
from topics.client.client import Client, connect
from topics.client.topic import Queue, Router, Topic

__all__ = [
    "AsyncClient",
    "AsyncQueue",
    "AsyncRouter",
    "AsyncTopic",
    "Client",
    "Queue",
    "Router",
    "Topic",
    "aconnect",
    "connect",
]
