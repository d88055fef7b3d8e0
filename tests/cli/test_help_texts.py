"""What `help()` shows: the package, and every verb of the library, say what they are for."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import topics
from topics.client import Queue, Router, Topic
from topics.client.client import AsyncClient, AsyncQueue, AsyncRouter, AsyncTopic, Client
from topics.client.jobs.work import AsyncHeldJob, AsyncWork, HeldJob, Work
from topics.client.jobs.worker import AsyncWorker, Worker, WorkerOptions
from topics.client.producing.producer import AsyncProducer, Producer
from topics.embedded import Database
from topics.embedded import Queue as EmbeddedQueue
from topics.embedded import Router as EmbeddedRouter
from topics.embedded import Topic as EmbeddedTopic

CLIENTS = [Client, Topic, Queue, Router, Producer, Worker, WorkerOptions, Work, HeldJob]
ASYNC_CLIENTS = [AsyncClient, AsyncTopic, AsyncQueue, AsyncRouter, AsyncProducer, AsyncWorker, AsyncWork, AsyncHeldJob]
EMBEDDED = [Database, EmbeddedTopic, EmbeddedQueue, EmbeddedRouter]


def is_silent(kind: type, name: str) -> bool:
    verb = inspect.getattr_static(kind, name)
    return isinstance(verb, property) | inspect.isfunction(verb) and not inspect.getdoc(getattr(kind, name))


@pytest.mark.parametrize("kind", [*CLIENTS, *ASYNC_CLIENTS, *EMBEDDED, topics.Record, topics.Job, topics.Gap])
def test_every_verb_of_the_library_says_what_it_does(kind: type) -> None:
    assert kind.__dict__.get("__doc__")
    assert [name for name in dir(kind) if not name.startswith("_") and is_silent(kind, name)] == []


def test_the_package_shows_its_names() -> None:
    assert dir(topics) == sorted(topics.__all__)
    assert all(name in str(topics.__doc__) for name in ("open", "connect", "aconnect", "Event", "Gap", "DataLoss"))


@pytest.mark.parametrize("module", ["topics", "topics.client", "topics.embedded", "topics.cli", "topics.server"])
def test_an_import_warns_of_nothing(module: str) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", f"import {module}"], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
