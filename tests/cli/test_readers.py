"""`topics cursor`, reads by tag, time and cursor, and several topics in one tail."""

from __future__ import annotations

import json
from typing import Any

from tests.cli.conftest import Shell

from topics import Event


def filled(shell: Shell, name: str) -> Any:
    topic = shell.client.topic(name)
    topic.append_many([Event(at, tag="ab"[at % 2]) for at in range(6)])
    return topic


def test_reads_begin_at_a_time_that_is_relative_and_at_a_cursor(shell: Shell) -> None:
    topic = filled(shell, "starts")
    topic.cursor("billing").commit(4)
    assert shell.lines("read", "starts", "--from", "@-5m", "--data-only") == list("012345")
    assert shell.lines("read", "starts", "--from", "cursor:billing", "--data-only") == ["4", "5"]
    assert shell.lines("read", "starts", "--to", "cursor:billing", "--tag", "b", "--data-only") == ["1", "3"]
    assert shell.lines("read", "starts", "--from", "@2990-01-01", "--data-only") == []
    assert topic.cursor("billing").get().seq == 4
    for wrong, status in (("@-5x", 2), ("cursor:", 2), ("cursor:absent", 1)):
        told = shell.run("read", "starts", "--from", wrong, status=status).stderr
        assert len(told.strip().splitlines()[-1]) > 20
    assert "empty" in shell.run("read", "starts", "--tag", "", status=1).stderr


def test_one_record_is_shown_by_its_seq_or_as_the_newest(shell: Shell) -> None:
    filled(shell, "single")
    (line,) = shell.lines("get", "single", "3")
    assert (json.loads(line)["data"], json.loads(line)["$tag"]) == (2, "a")
    assert shell.lines("get", "single", json.loads(line)["position"], "--data-only") == ["2"]
    assert shell.lines("get", "single", "--data-only") == ["5"]
    assert shell.lines("get", "single", "--tag", "a*", "--data-only") == ["4"]
    assert "does not exist yet" in shell.run("get", "single", "99", status=1).stderr
    assert "no record" in shell.run("get", "single", "--tag", "none", status=1).stderr
    shell.run("get", "single", "3", "--tag", "a", status=2)


def test_tail_shows_several_topics_and_says_which(shell: Shell) -> None:
    filled(shell, "many.1")
    filled(shell, "many.2")
    lines = shell.lines("tail", "many.1", "many.2", "--from", "-2", "--tag", "b", "-n", "2")
    assert sorted((json.loads(line)["topic"], json.loads(line)["data"]) for line in lines) == [
        ("many.1", 5),
        ("many.2", 5),
    ]
    shell.run("produce", "many.copy", stdin="\n".join(lines))
    assert [record.value for record in shell.client.topic("many.copy").read()] == [5, 5]


def test_tail_with_a_cursor_goes_on_where_it_ended(shell: Shell) -> None:
    topic = filled(shell, "resumed")
    tail = ("tail", "resumed", "--from", "start", "--cursor", "shown", "--data-only", "-n")
    assert shell.lines(*tail, "3") == ["0", "1", "2"]
    assert topic.cursor("shown").get().seq == 2
    assert shell.lines(*tail, "2") == ["2", "3"]


def test_cursors_are_listed_shown_reset_and_forgotten(shell: Shell) -> None:
    topic = filled(shell, "cursed")
    topic.cursor("billing").commit(2, meta={"host": "a"})
    (line,) = shell.lines("cursor", "ls", "cursed", "--json")
    shown = json.loads(line)
    assert (shown["cursor"], shown["kind"], shown["seq"], shown["lag_records"]) == ("billing", "cursor", 2, 4)
    assert shell.lines("cursor", "ls", "--prefix", "curse")[0].split("\t")[:4] == ["cursed", "billing", "cursor", "2"]
    fields = json.loads(shell.lines("cursor", "show", "cursed", "billing", "--json")[0])
    assert (fields["meta"], fields["lag"]["records"]) == ({"host": "a"}, 4)

    told = shell.run("cursor", "reset", "cursed", "billing", "--to", "5", "--dry-run").stderr
    assert "is at seq 2" in told
    assert topic.cursor("billing").get().seq == 2
    for target, seq in (("5", 4), ("end", 6), ("-1", 5), ("@-5m", 0)):
        done = json.loads(shell.lines("cursor", "reset", "cursed", "billing", "--to", target, "--yes", "--json")[0])
        assert done["seq"] == seq, target
    shell.run("cursor", "rm", "cursed", "billing", status=2)
    assert json.loads(shell.lines("cursor", "rm", "cursed", "billing", "--yes", "--json")[0])["deleted"] is True
    assert "no cursor" in shell.run("cursor", "show", "cursed", "billing", status=1).stderr
