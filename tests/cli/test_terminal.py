"""What a person sees: stdout and stderr are a pseudo-terminal. And what a program sees of the same."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.cli.conftest import Shell

import topics

CSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def test_a_terminal_gets_a_table_a_pipe_lines_and_a_program_json(shell: Shell) -> None:
    shell.client.topic("look").configure()
    shown = shell.on_terminal("topic", "ls", "--prefix", "look")
    assert "earliest" in shown
    assert shell.lines("topic", "ls", "--prefix", "look") == ["look\tlog\t0\t0\t0\t1\tfalse\t0"]
    (line,) = shell.lines("topic", "ls", "--prefix", "look", "--json")
    assert json.loads(line)["topic"] == "look"
    assert '"topic":"look"' in shell.on_terminal("topic", "ls", "--prefix", "look", "--json")


def test_records_are_lines_for_a_person_or_json(shell: Shell) -> None:
    shell.client.topic("seen").append({"a": 1}, tag="t:1", node="n")
    shown = shell.on_terminal("read", "seen")
    assert re.search(r'1 +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} +t:1 @n +\{"a":1\}', shown)
    assert json.loads(shell.on_terminal("read", "seen", "--json"))["$tag"] == "t:1"
    assert shell.on_terminal("read", "seen", "--data-only").strip() == '{"a":1}'


def test_a_table_shows_data_as_it_is(shell: Shell) -> None:
    shell.client.queue("marked").append("[bold]x[/bold]")
    assert '"[bold]x[/bold]"' in shell.on_terminal("queue", "claim", "marked")


def test_a_terminal_does_not_obey_what_is_in_data(shell: Shell) -> None:
    shell.client.queue("hostile").append(topics.Json('"\x9b2J"'.encode()), tag="\x1b[2J", node="\r\x07")
    shown = shell.on_terminal("read", "hostile")
    assert r"\x1b[2J @\x0d\x07" in shown
    assert r"\x9b2J" in shown
    claimed = shell.on_terminal("queue", "claim", "hostile")
    assert r"\x1b[2J" in claimed
    assert "\x1b" not in shown + claimed


def test_a_narrow_terminal_shows_everything(shell: Shell) -> None:
    shell.client.topic("narrow-terminals-fold-long-names").append(1)
    shown = shell.on_terminal("topic", "ls", "--prefix", "narrow", COLUMNS="40", PYTHONIOENCODING="ascii")
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    cells = [line.split() for line in shown.splitlines()[1:]]
    assert "narrow-terminals-fold-long-names" in "".join(row[0] for row in cells if row)


def test_colours_are_for_terminals_that_want_them(shell: Shell) -> None:
    shell.client.topic("coloured").append(1)
    for args in (("read", "coloured"), ("topic", "ls"), ("config", "show")):
        assert COLOUR.search(shell.on_terminal(*args, NO_COLOR="", TERM="xterm-256color")), args
        assert "\x1b" not in shell.on_terminal(*args, NO_COLOR="1", TERM="xterm-256color")
        assert "\x1b" not in shell.run(*args).stdout


def test_a_destructive_verb_asks_on_a_terminal(shell: Shell) -> None:
    topic = shell.client.topic("doomed")
    topic.append_many([1, 2])
    assert "with 2 records? [y/N]" in shell.on_terminal("topic", "rm", "doomed", answer="n\n", status=1)
    assert topic.state().count == 2
    shell.on_terminal("topic", "rm", "doomed", answer="y\n")
    assert "doomed" not in [summary.topic for summary in shell.client.topics()]


def test_long_work_shows_a_bar_on_a_terminal_only(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "many.jsonl").write_text("".join(f'{{"n":{n}}}\n' for n in range(5000)))
    shown = shell.on_terminal("produce", "bar", "many.jsonl", TERM="xterm")
    assert "appending to bar" in shown
    assert "5000 records appended" in CSI.sub("", shown)
    assert "appending" not in shell.run("produce", "bar", "many.jsonl").stderr


def test_ctrl_c_on_a_terminal_ends_a_tail_with_130(shell: Shell) -> None:
    shell.client.topic("watched").append("here")
    assert "here" in shell.on_terminal("tail", "watched", "--data-only", answer="\x03", after="here", status=130)


def test_no_terminal_no_question(shell: Shell) -> None:
    shell.client.topic("asked").append(1)
    assert "Nobody is here to answer" in shell.run("topic", "rm", "asked", status=2).stderr
