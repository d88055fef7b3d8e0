"""Clients of a server: blocking (`connect`) and for asyncio (`aconnect`), with the verbs of the embedded library.

Modules, in reading order:

    client            Client, AsyncClient and their handles: what users hold
    verbs             what a topic, a queue and a router can be asked: written once, as coroutines over a door
    blocking_handles  runs these coroutines without an event loop
    routes            every endpoint with its request and its answer
    http_door         the verbs carried out by a server
    following         a reader that waits at the head of a topic
    producing/        batching producers
    jobs/             workers of queues
    transport/        calls over HTTP/1.1: connections, retries

Never imports the engine, and knows nothing of a data directory.
"""

from topics.client.blocking_handles import Router
from topics.client.client import (
    AsyncClient,
    AsyncQueue,
    AsyncRouter,
    AsyncTopic,
    Client,
    Queue,
    Topic,
    aconnect,
    connect,
)

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
