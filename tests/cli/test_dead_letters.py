"""`topics dlq`: nothing is lost, nothing goes where it is no job."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Shell

from topics.client import Queue, Topic
from topics.model.results import Record


def buried(shell: Shell, name: str, count: int) -> tuple[Queue, Topic]:
    """A queue whose jobs all died once."""
    queue = shell.client.queue(name, max_deliveries=1, dead_letter=f"{name}.dead", claim_jitter_ms=0)
    for number in range(count):
        queue.append({"n": number}, tag=f"t:{number}", node="me", meta={"k": number})
    for _ in range(2):
        queue.nack(queue.claim("w", max=1000).claimed, node="w")
    return queue, shell.client.topic(f"{name}.dead")


def test_letters_are_listed_with_where_they_came_from(shell: Shell) -> None:
    buried(shell, "d1", 2)
    rows = [json.loads(line) for line in shell.lines("dlq", "ls", "d1.dead", "--json")]
    assert [(row["from"], row["src_seq"], row["deliveries"], row["data"]) for row in rows] == [
        ("d1", "1", "1", {"n": 0}),
        ("d1", "2", "1", {"n": 1}),
    ]


def test_a_redrive_sends_everything_back_as_it_was(shell: Shell) -> None:
    queue, dead = buried(shell, "d2", 250)
    assert (
        "250 dead letters of d2.dead would be sent back" in shell.run("dlq", "redrive", "d2.dead", "--dry-run").stderr
    )
    assert (queue.state().count, dead.state().count) == (0, 250)
    shell.run("dlq", "redrive", "d2.dead", "--yes")
    assert dead.state().count == 0
    jobs = [record for record in queue.read() if isinstance(record, Record)]
    assert [(job.value["n"], job.tag, job.node, job.headers) for job in jobs] == [
        (n, f"t:{n}", "me", {"k": n}) for n in range(250)
    ]


def test_a_meta_that_is_no_object_comes_back_as_it_was(shell: Shell) -> None:
    queue = shell.client.queue("d8", max_deliveries=1, dead_letter="d8.dead")
    queue.append(1, meta=["no", "object"])
    queue.nack(queue.claim("w").claimed, node="w")
    assert queue.claim("w").claimed == []
    shell.run("dlq", "redrive", "d8.dead", "--yes")
    assert [record.headers for record in queue.read()] == [["no", "object"]]


def test_no_letters_are_none_sent_back(shell: Shell) -> None:
    shell.client.topic("d9.dead").configure()
    assert json.loads(shell.lines("dlq", "redrive", "d9.dead", "--json")[0]) == {"topic": "d9.dead", "redriven": 0}


def test_some_letters_may_stay(shell: Shell) -> None:
    queue, dead = buried(shell, "d3", 3)
    shell.run("dlq", "redrive", "d3.dead", "-n", "2", "--yes")
    assert (queue.state().count, [record.value["n"] for record in dead.read()]) == (2, [2])


def test_letters_are_chosen_by_tag_error_and_time(shell: Shell) -> None:
    queue, dead = buried(shell, "d4", 3)
    assert "0 dead" in shell.run("dlq", "redrive", "d4.dead", "--error", "timeout", "--dry-run").stderr
    assert "0 dead" in shell.run("dlq", "redrive", "d4.dead", "--until", "2020-01-01", "--dry-run").stderr
    shell.run("dlq", "redrive", "d4.dead", "--tag", "t:1", "--since", "2020-01-01T00:00", "--rate", "5", "--yes")
    assert ([record.value["n"] for record in queue.read()], dead.state().count) == ([1], 2)
    assert "no time" in shell.run("dlq", "redrive", "d4.dead", "--since", "soon", status=2).stderr


@pytest.mark.parametrize("fate", ["gone", "a log"])
def test_nothing_moves_if_the_queue_is(shell: Shell, fate: str) -> None:
    name = f"d5-{fate[:1]}"
    queue, dead = buried(shell, name, 2)
    queue.drop()
    if fate == "a log":
        shell.client.topic(name).configure()
    done = shell.run("dlq", "redrive", f"{name}.dead", "--yes", status=1)
    assert "--to" in done.stderr
    assert dead.state().count == 2
    assert [t.topic for t in shell.client.topics(name)] == ([name] if fate == "a log" else []) + [f"{name}.dead"]
    other = shell.client.queue(f"{name}.other")
    other.configure()
    shell.run("dlq", "redrive", f"{name}.dead", "--to", f"{name}.other", "--yes")
    assert (other.state().count, dead.state().count) == (2, 0)


def test_a_record_that_is_no_dead_letter_stops_a_redrive_before_it_begins(shell: Shell) -> None:
    queue, dead = buried(shell, "d6", 2)
    dead.append("by hand")
    assert "do not say where" in shell.run("dlq", "redrive", "d6.dead", "--yes", status=1).stderr
    assert (queue.state().count, dead.state().count) == (0, 3)


def test_a_purge_says_how_many_and_takes_only_what_is_there(shell: Shell) -> None:
    _, dead = buried(shell, "d7", 4)
    assert "4 dead letters" in shell.run("dlq", "purge", "d7.dead", "--dry-run").stderr
    assert dead.state().count == 4
    assert json.loads(shell.lines("dlq", "purge", "d7.dead", "--yes", "--json")[0])["deleted"] == 4
    assert "redriven\t0" in shell.lines("dlq", "redrive", "d7.dead", "--yes")
