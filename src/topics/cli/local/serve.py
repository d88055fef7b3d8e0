"""`topics serve`: the server, in the foreground."""

import asyncio
import logging
import os
import sys
from datetime import UTC, datetime

import click
import msgspec

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


class JsonFormatter(logging.Formatter):
    """One JSON object per event: `ts` (UTC), `level`, `logger`, `message`, and `exception` with the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        shown = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(shown).decode()


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
    is_json = resolved.settings.log_format == "json"
    lines = LineFormatter("%(asctime)s %(levelname)s %(name)s %(message)s")
    handler.setFormatter(JsonFormatter() if is_json else lines)
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
