"""Clients of a server: blocking (`connect`) and for asyncio (`aconnect`), with the verbs of the embedded library.

Modules, in reading order:

    client            Client, AsyncClient and their handles: what users hold
    readers           where a reader begins, which records it wants, what it commits; named cursors
    verbs             what a topic and a router can be asked: written once, as coroutines over a door
    queue_verbs       what a queue and its dead letters can be asked, likewise
    schedule_verbs    what a schedule can be asked, likewise
    blocking_handles  runs these coroutines without an event loop
    routes            every endpoint with its request and its answer
    http_door         the verbs carried out by a server
    following         a reader that waits at the head of one or several topics of a server
    tracing           the context of a trace into records and out of them, for who wants that
    producing/        batching producers
    jobs/             workers of queues
    transport/        calls over HTTP/1.1: connections, retries

Never imports the engine, and knows nothing of a data directory.
"""

from topics.client.blocking_handles import Cursor, DeadLetterTopic, Router, Schedule
from topics.client.client import (
    AsyncClient,
    AsyncDeadLetterTopic,
    AsyncQueue,
    AsyncRouter,
    AsyncSchedule,
    AsyncTopic,
    Client,
    Queue,
    Topic,
    aconnect,
    connect,
)

__all__ = [
    "AsyncClient",
    "AsyncDeadLetterTopic",
    "AsyncQueue",
    "AsyncRouter",
    "AsyncSchedule",
    "AsyncTopic",
    "Client",
    "Cursor",
    "DeadLetterTopic",
    "Queue",
    "Router",
    "Schedule",
    "Topic",
    "aconnect",
    "connect",
]
