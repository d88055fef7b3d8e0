"""`topics worker`: runs the functions that an app registers for queues, in the manner of Celery and Dramatiq."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import FrameType

import click

from topics.cli.remote import say
from topics.client.jobs.job_app import JobApp
from topics.client.jobs.worker import ExecutorKind, WorkerFields
from topics.config import spans_are_on

LOOK_S = 0.5  # between two looks at the files, with --reload


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option("-q", "--queue", "queues", multiple=True, help="Only this queue; repeat for more.  [default: all]")
@click.option("-c", "--concurrency", type=click.IntRange(min=1), help="Jobs of each queue at a time.")
@click.option(
    "--executor",
    type=click.Choice(["threads", "processes", "asyncio"]),
    help="Where functions run.  [default: as registered]",
)
@click.option("--until-empty", is_flag=True, help="Stop when nothing is ready.")
@click.option("--reload", is_flag=True, help="For development: begin again when a Python file here has changed.")
@click.option("--url", metavar="URL", help="Server to talk to.  [env: TOPICS_URL; default: as the app says]")
@click.option("--api-key", metavar="KEY", help="Bearer key; better given in the environment.  [env: TOPICS_API_KEY]")
def worker(
    app: str,
    *,
    queues: tuple[str, ...],
    concurrency: int | None,
    executor: ExecutorKind | None,
    until_empty: bool,
    reload: bool,
    url: str | None,
    api_key: str | None,
) -> None:
    """Work on queues with the functions of an app, until SIGTERM or Ctrl-C.

    \b
    topics worker shop.jobs:app
    topics worker shop.jobs:app -q mails --concurrency 16
    topics worker shop.jobs:app --reload

    A module has `app = topics.JobApp()` and functions under `@app.job("mails")`. A stop lets running functions finish.
    """
    if reload:
        sys.exit(supervise([argument for argument in sys.argv[1:] if argument != "--reload"]))
    loaded = load(app)
    loaded.url, loaded.api_key = url or loaded.url, api_key or loaded.api_key
    overrides: WorkerFields = {"until_empty": until_empty}
    if concurrency is not None:
        overrides["concurrency"] = concurrency
    if executor is not None:
        overrides["executor"] = executor
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if spans_are_on(os.environ):
        from topics.server.span_export import export_spans

        export_spans()
    names = queues or tuple(function.queue_name for function in loaded.functions)
    say(f"topics: working on {', '.join(names)} of {loaded.url}")
    loaded.run(queues, **overrides)


def load(where: str) -> JobApp:
    """The app of `module:name`, or of a module that has one called `app`; modules of this directory come first."""
    module, _, name = where.partition(":")
    sys.path.insert(0, "")
    try:
        found = getattr(import_module(module), name or "app")
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # a module that this one imports
        raise click.ClickException(f"there is no module {module!r} here; give MODULE:APP") from None
    except AttributeError:
        raise click.ClickException(f"module {module!r} has no {name or 'app'!r}; give MODULE:APP") from None
    if not isinstance(found, JobApp):
        raise click.ClickException(f"{where} is no topics.JobApp but a {type(found).__name__}")
    return found


# --- reload ----------------------------------------------------------------------------------------------------------


def supervise(arguments: list[str]) -> int:
    """Runs the worker as a child, and again whenever a file has changed. Its exit status is the last child's."""
    asked: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        asked.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    seen = stamps()
    while True:
        child = subprocess.Popen([sys.executable, "-m", "topics.cli", *arguments])
        while not asked and (now := stamps()) == seen:
            time.sleep(LOOK_S)
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
        status = child.wait()
        if asked:
            return status
        say("topics: a file has changed; the worker begins again")
        seen = now


def stamps() -> dict[str, int]:
    """The Python files under this directory with their times of change; hidden directories and caches left out."""
    found: dict[str, int] = {}
    for path in Path().rglob("*.py"):
        if not any(part.startswith(".") or part in ("node_modules", "__pycache__") for part in path.parts):
            try:
                found[str(path)] = path.stat().st_mtime_ns
            except OSError:
                pass  # it was removed meanwhile
    return found
