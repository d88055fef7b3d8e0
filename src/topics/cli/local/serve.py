"""`topics serve`: the server, in the foreground."""

import asyncio
import logging
import os
import sys

import click

from topics.config import settings_from

LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}


class LineFormatter(logging.Formatter):
    """One line per event: time, level, logger, message; a traceback follows on the same line, escaped."""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\n", "\\n")


@click.command()
def serve() -> None:
    """Run the server until SIGTERM or SIGINT.

    \b
    topics serve
    TOPICS_DATA_DIR=/var/lib/topics TOPICS_PORT=4000 topics serve
    TOPICS_API_KEYS='ops,dash:read' TOPICS_HOST=0.0.0.0 topics serve

    Configured by environment variables; `topics config show` lists them all.
    """
    resolved = settings_from(os.environ)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=LEVELS[resolved.settings.log], handlers=[handler])
    for warning in resolved.warnings:
        logging.getLogger("topics").warning("%s", warning)

    from topics.server.process import ServerProcess

    process = ServerProcess(resolved.settings)
    try:
        import uvloop

        uvloop.run(process.run())
    except ImportError:
        asyncio.run(process.run())
