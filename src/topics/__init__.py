"""topics: a durable event engine for one machine.

    with topics.open("./my-data") as db:                     # the engine in this process
        db.topic("orders").append({"id": 1})

    with topics.connect("http://127.0.0.1:4000") as client:  # the same verbs against a server
        for record in client.topic("orders").read():
            print(record.seq, record.value)

`aconnect` is `connect` for asyncio. Appends take values, `Event`s and `Json` text; reads give `Record`s, and a `Gap` or
`DataLoss` where something was lost; queues hand out `Job`s, to a loop, a worker or the functions of a `JobApp`. Every
error is a `TopicsError`.
"""

# Each name is loaded on first use, so that importing one part (a client on a Spark executor, say) does not load the
# others.

from importlib import import_module

TYPE_CHECKING = False  # as in `typing`, which takes a while to load
if TYPE_CHECKING:
    from topics.client import aconnect, connect
    from topics.client.jobs.handling import GiveUp, RetryLater, TimeLimitPassed
    from topics.client.jobs.job_app import JobApp
    from topics.config import Settings
    from topics.embedded import open_database as open  # noqa: A004
    from topics.errors import DataLoss, TopicsError, TopicsWarning, Unreachable
    from topics.model.paging import Gap
    from topics.model.results import Job, Record
    from topics.model.values import Event, Json, Unique

__version__ = "0.1.0"

__all__ = [
    "DataLoss",
    "Event",
    "Gap",
    "GiveUp",
    "Job",
    "JobApp",
    "Json",
    "Record",
    "RetryLater",
    "Settings",
    "TimeLimitPassed",
    "TopicsError",
    "TopicsWarning",
    "Unique",
    "Unreachable",
    "__version__",
    "aconnect",
    "connect",
    "open",
]

_HOMES = {
    "JobApp": "topics.client.jobs.job_app:JobApp",
    "DataLoss": "topics.errors:DataLoss",
    "Event": "topics.model.values:Event",
    "Gap": "topics.model.paging:Gap",
    "GiveUp": "topics.client.jobs.handling:GiveUp",
    "Job": "topics.model.results:Job",
    "Json": "topics.model.values:Json",
    "Record": "topics.model.results:Record",
    "RetryLater": "topics.client.jobs.handling:RetryLater",
    "Settings": "topics.config:Settings",
    "TimeLimitPassed": "topics.client.jobs.handling:TimeLimitPassed",
    "TopicsError": "topics.errors:TopicsError",
    "TopicsWarning": "topics.errors:TopicsWarning",
    "Unique": "topics.model.values:Unique",
    "Unreachable": "topics.errors:Unreachable",
    "aconnect": "topics.client:aconnect",
    "connect": "topics.client:connect",
    "open": "topics.embedded:open_database",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'topics' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(import_module(module), attribute)
