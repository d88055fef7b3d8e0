"""Help that opens with examples, and examples that are real commands. Shell completion that completes."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.cli.conftest import Shell

from topics.cli import COMMANDS, cli

VERBS = (
    "archive", "bench", "completion", "config", "cursor", "delete", "dlq", "doctor", "export", "get",
    "import", "inspect", "latest", "pipeline", "produce", "queue", "read", "replay", "router", "schedule",
    "serve",
    "stats", "tail", "tier", "top", "topic", "verify", "worker",
)  # fmt: skip
SUBCOMMANDS = {
    "topic": {"create", "ls", "info", "config", "rm"},
    "queue": {
        "claim",
        "ack",
        "nack",
        "extend",
        "stats",
        "work",
        "ls",
        "jobs",
        "workers",
        "pause",
        "resume",
        "cancel",
        "retry",
        "purge",
    },
    "cursor": {"ls", "show", "reset", "rm"},
    "dlq": {"ls", "redrive", "purge"},
    "router": {"put", "ls", "info", "rm"},
    "schedule": {"put", "ls", "info", "run", "pause", "resume", "rm"},
    "tier": {"status"},
    "config": {"show"},
    "pipeline": {"init", "run"},
}


def walk(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from walk(found, (*path, name))


EVERY = dict(walk(cli))


def examples_of(command: click.Command) -> list[str]:
    """The lines of the block that follows the first sentence."""
    assert command.help is not None
    block = command.help.partition("\b\n")[2].partition("\n\n")[0]
    return [line.strip() for line in block.splitlines()]


def test_every_verb_is_there() -> None:
    assert sorted(COMMANDS) == sorted(VERBS)
    for name, wanted in SUBCOMMANDS.items():
        group = EVERY[(name,)]
        assert isinstance(group, click.Group)
        assert set(group.commands) == wanted


def test_the_list_of_commands_says_what_each_one_says_of_itself() -> None:
    assert {name: told for name, (_, told) in COMMANDS.items()} == {
        name: EVERY[(name,)].get_short_help_str(200) for name in COMMANDS
    }


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_help_opens_with_examples(path: tuple[str, ...]) -> None:
    command = EVERY[path]
    lines = examples_of(command)
    assert any(f"topics {' '.join(path)}".strip() in line for line in lines), lines
    text = command.get_help(click.Context(command, info_name="topics " + " ".join(path)))
    assert text.index(lines[0]) < text.index("Options:")


def parts_of(line: str) -> Iterator[list[str]]:
    """The `topics` commands of a shell line, without what the shell does with them."""
    words: list[str] = []
    for word in [*shlex.split(line), "|"]:
        if word in ("|", ">"):
            while words and "=" in words[0]:
                del words[0]
            if words and words[0] == "topics":
                yield words[1:]
            words = []
        else:
            words.append(word)


def takes(words: list[str]) -> click.Command:
    """The command that these words reach. Raises click's own errors for what it does not take."""
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, words
        command, words = found, words[1:]
        context = click.Context(command, parent=context, **command.context_settings)
    if "--help" not in words:
        with context:  # closes the files it opened
            command.parse_args(context, list(words))
    return command


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_example_is_a_command_line_that_is_taken(path: tuple[str, ...], tmp_path: Path) -> None:
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        (tmp_path / "orders.jsonl").write_text("")
        for line in examples_of(EVERY[path]):
            for words in parts_of(line):
                local = [word.replace("/var/lib/topics", str(tmp_path)) for word in words]
                if "COMMAND" not in local:
                    takes(local)
    finally:
        os.chdir(before)


def completed(shell: Shell, *words: str) -> list[str]:
    at = str(len(words) - 1)
    done = shell.run(_TOPICS_COMPLETE="bash_complete", COMP_WORDS=" ".join(words), COMP_CWORD=at)
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_the_shell_completes_verbs_and_flags(shell: Shell) -> None:
    assert completed(shell, "topics", "pro") == ["produce"]
    assert completed(shell, "topics", "queue", "") == sorted(SUBCOMMANDS["queue"])
    assert "--from" in completed(shell, "topics", "read", "--")


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_scripts_call_the_command(shell: Shell, name: str) -> None:
    script = shell.run("completion", name).stdout
    assert "_TOPICS_COMPLETE" in script
    if name == "bash":
        assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=30).returncode == 0
