"""The `topics` command: a table of verbs, each loaded only when it is used.

Data goes to stdout, everything else to stderr. An error of our tree ends the process with one sentence and its own exit
status; `EXIT_STATUSES` lists them all.
"""

import os
import sys
from importlib import import_module
from typing import Any

import click

import topics
from topics.errors import TopicsError, Unauthorized, Unreachable

COMMANDS = {
    "archive": (
        "topics.cli.spark.archive:archive",
        "Copy topics into a table by topic and date, incrementally and exactly once.",
    ),
    "bench": ("topics.cli.local.bench:bench", "Measure single appends, batches and reads."),
    "completion": ("topics.cli.local.tools:completion", "Print the completion script of a shell."),
    "config": ("topics.cli.local.config:config", "Settings of this process."),
    "cursor": ("topics.cli.data.cursor:cursor", "Named cursors: list them with their lag, look at one, reset, forget."),
    "delete": ("topics.cli.data.records:delete", "Delete records below a seq, by tag, or both."),
    "dlq": ("topics.cli.data.dlq:dlq", "Dead letters: list, redrive into their queues, purge."),
    "doctor": (
        "topics.cli.local.tools:doctor",
        "Check what this machine needs, and say what to do about what is missing.",
    ),
    "get": (
        "topics.cli.data.reading:get",
        "One record: by its seq or position, or the newest, of all or of a tag.",
    ),
    "export": ("topics.cli.data.transfer:export", "Write a topic into a file: JSON lines, or Parquet."),
    "import": ("topics.cli.data.transfer:import_", "Append the records of a file that `topics export` wrote."),
    "inspect": (
        "topics.cli.local.inspect:inspect",
        "Look inside a data directory, read-only, whether a server runs on it or not.",
    ),
    "latest": (
        "topics.cli.data.reading:latest",
        "The newest record of each tag, in the order of tags; a tag whose newest record is null is left out.",
    ),
    "pipeline": ("topics.cli.spark.pipeline:pipeline", "Bronze, silver and gold tables from topics."),
    "produce": ("topics.cli.data.records:produce", "Append JSON lines from files or stdin, one record per line."),
    "queue": (
        "topics.cli.data.jobs:queue",
        "Queues: look at jobs and workers, pause, claim and ack, or work on them with a command.",
    ),
    "read": ("topics.cli.data.reading:read", "Read records: as JSON lines, or, on a terminal, as lines for a person."),
    "replay": ("topics.cli.spark.replay:replay", "Write archived records into topics, each topic in its old order."),
    "router": ("topics.cli.data.router:router", "Routers: copy what is written to one topic into another."),
    "schedule": ("topics.cli.data.schedule:schedule", "Schedules: append a record to a topic by the clock."),
    "serve": ("topics.cli.local.serve:serve", "Run the server until SIGTERM or SIGINT."),
    "stats": ("topics.cli.spark.stats:stats", "Records, bytes and rates by topic, time bucket and tag prefix."),
    "tail": ("topics.cli.data.reading:tail", "The last records, and then whatever comes, of one topic or of several."),
    "tier": ("topics.cli.data.tier:tier", "The hot and the cold tier."),
    "top": ("topics.cli.data.top:top", "Rates, topics, queues and the lag of readers, live; q or Ctrl-C ends it."),
    "topic": ("topics.cli.data.topic:topic", "Topics: create, list, look at, reconfigure, remove."),
    "verify": (
        "topics.cli.spark.verify:verify",
        "Check every frame of every segment; exit status 1 if any is damaged.",
    ),
    "worker": (
        "topics.cli.data.app_worker:worker",
        "Work on queues with the functions of an app, until SIGTERM or Ctrl-C.",
    ),
}
"""Where each command is, and the first sentence of its help: to list them, none is loaded."""

EXIT_INTERRUPTED = 130
EXIT_STATUSES = """\b
Exit statuses
  0    done
  1    refused, not reachable, or something is wrong; one sentence says what
  2    a wrong command line or setting; nothing was done
  3    records were lost (read, tail and export without --gaps)
  130  interrupted
"""


class LazyGroup(click.Group):
    """A group whose commands are addresses, so that `topics --version` does not import the server, and `topics --help`
    none of them."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(EXIT_INTERRUPTED)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in COMMANDS.items()])


def _show_version(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        from topics.formats.kernel_choice import KERNEL

        click.echo(f"topics {topics.__version__} ({KERNEL})")
        ctx.exit()


@click.group(cls=LazyGroup, epilog=EXIT_STATUSES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """A durable event engine for one machine.

    \b
    topics serve
    echo '{"id": 1}' | topics produce orders
    topics read orders --from -10
    topics tail orders
    topics COMMAND --help

    Commands talk to TOPICS_URL with TOPICS_API_KEY. A terminal gets tables, a pipe lines, --json JSON lines.
    """


def main() -> None:
    """The entry point: runs the command line and turns our errors into a sentence and an exit status."""
    _open_what_is_closed()
    try:
        cli(prog_name="topics")
    except TopicsError as error:
        click.echo(f"topics: {error}{_what_to_do(error)}", err=True)
        sys.exit(error.exit_status)
    except UnicodeEncodeError:
        click.echo("topics: an argument is not valid UTF-8", err=True)
        sys.exit(2)
    except OSError as error:  # a full disk behind stdout, for one
        where = "" if error.filename is None else f"{error.filename}: "
        click.echo(f"topics: {where}{error.strerror or error}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left is not tried again at exit
        sys.exit(1)


def _what_to_do(error: TopicsError) -> str:
    if isinstance(error, Unauthorized):
        return "; set TOPICS_API_KEY"
    if isinstance(error, Unreachable) and not error.sent:
        return "; `topics serve` starts a server, TOPICS_URL or --url says where one is"
    return ""


def _open_what_is_closed() -> None:
    """`topics ... >&-` writes to nobody, and reads from nobody with `<&-`."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until the end
