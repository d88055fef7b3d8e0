"""The command line against a live server: in a pipe, on a terminal, and every exit status it promises."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Shell

import topics
from topics import Event


def test_produce_then_read_keeps_every_byte(shell: Shell) -> None:
    shell.run("produce", "p1", stdin='{"a": 1.0}\n\n[1,  2]\n"x"\n')
    assert shell.lines("read", "p1", "--data-only") == ['{"a": 1.0}', "[1,  2]", '"x"']
    assert [json.loads(line)["$seq"] for line in shell.lines("read", "p1", "--from", "-2")] == [2, 3]
    assert len(shell.lines("read", "p1", "--from", "2", "--to", "2")) == 1
    assert len(shell.lines("read", "p1", "-n", "1")) == 1
    assert shell.lines("read", "p1", "--from", "end") == []
    assert len(shell.lines("read", "p1", "--from", "@2020-01-01")) == 3


def test_a_record_is_one_line_whatever_white_space_its_payload_has(shell: Shell) -> None:
    payload = topics.Json(b'{"a":\r\n1,\n\t"b":2}')
    shell.client.topic("p3").append(payload, meta={"k": 1})
    assert shell.lines("read", "p3", "--data-only") == ['{"a":  1, \t"b":2}']
    assert [json.loads(line)["data"] for line in shell.lines("read", "p3")] == [{"a": 1, "b": 2}]
    shell.client.queue("p3.jobs").append(payload)
    assert [json.loads(line)["data"] for line in shell.lines("queue", "claim", "p3.jobs")] == [{"a": 1, "b": 2}]


def test_what_is_read_and_produced_is_the_same_records(shell: Shell) -> None:
    source = shell.client.topic("export")
    source.append_many(
        [
            Event({"n": 1}, tag="a:1", node="n1", meta={"m": [1, 2]}),
            Event(topics.Json(b'{"b":1.50,  "a":"\\ud800"}'), meta=topics.Json(b'"\\udfff"')),
            Event(None, tag="t"),
            {"$seq": 1, "data": 2},
            "text",
        ]
    )
    told = shell.run("produce", "import", stdin=shell.run("read", "export", "--json").stdout).stderr
    assert told.startswith("5 records appended")

    def carried(topic: str) -> list[tuple[str, str | None, str | None]]:
        return [(str(r).partition("data=")[2], r.tag, r.node) for r in shell.client.topic(topic).read()]

    assert carried("import") == carried("export")
    line = shell.lines("read", "export", "-n", "1")[0]
    shell.run("produce", "import.2", "--tag", "mine", stdin=line)
    assert carried("import.2")[0][1:] == ("mine", "n1")
    shell.run("produce", "import.3", "--verbatim", stdin=line)
    assert [record.value for record in shell.client.topic("import.3").read()] == [json.loads(line)]
    shell.run("produce", "import.4", stdin=f"{line},{line}", status=1)  # not JSON, and not two records


def test_a_gap_of_the_source_is_told_and_not_stored(shell: Shell) -> None:
    shell.client.topic("holed", cap_records=1).append_many([1, 2])
    exported = shell.run("read", "holed", "--gaps", "--from", "1").stdout
    assert exported.startswith('{"gap":')
    assert "gap of its source, 1 to 1 (cap)" in shell.run("produce", "whole", stdin=exported).stderr
    assert shell.lines("read", "whole", "--data-only") == ["2"]


def test_lines_of_a_pipe_have_a_header_if_wanted(shell: Shell) -> None:
    shell.client.queue("headed").append(1)
    head, line = shell.lines("topic", "ls", "--prefix", "headed", "--header")
    fields = dict(zip(head.split("\t"), line.split("\t"), strict=True))
    assert (fields["topic"], fields["type"], fields["count"]) == ("headed", "queue", "1")
    assert shell.lines("topic", "ls", "--prefix", "headed") == [line]


def test_long_lines_go_in_smaller_writes(shell: Shell) -> None:
    done = shell.run("produce", "p4", "--json", stdin=f'"{"x" * 1_000_000}"\n' * 70)
    assert json.loads(done.stdout)["count"] == 70


def test_a_gap_behind_the_last_record_wanted_is_no_loss(shell: Shell, tmp_path: Path) -> None:
    source, dest = shell.client.topic("p5"), shell.client.topic("p5.copy")
    dest.configure(cap_records=2, discard="reject")
    shell.client.router("p5->copy").put("p5", "p5.copy")
    source.append_many([1, 2])
    assert dest.state().count == 2
    source.append_many([3, 4])
    source.configure(cap_records=1)
    dest.configure()
    assert shell.lines("read", "p5.copy", "--from", "1", "--to", "2", "--data-only") == ["1", "2"]
    assert len(shell.lines("read", "p5.copy", "--to", "2", "--gaps")) == 2
    shell.run("read", "p5.copy", "--from", "2", status=3)


def test_the_last_ten_of_a_topic_that_keeps_fewer_are_those_it_keeps(shell: Shell) -> None:
    shell.client.topic("p6", cap_records=3).append_many(range(20))
    assert shell.lines("read", "p6", "--from", "-10", "--data-only") == ["17", "18", "19"]
    assert shell.lines("tail", "p6", "-n", "3", "--data-only") == ["17", "18", "19"]
    assert shell.lines("read", "p6", "--from", "-2", "--data-only") == ["18", "19"]


def test_a_line_that_is_not_json_is_named(shell: Shell) -> None:
    done = shell.run("produce", "p2", stdin='{"a":1}\nnope\n', status=1)
    assert "<stdin>:2" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_raw_line_that_is_not_unicode_is_named(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "odd.log").write_bytes(b"fine\nodd \xff\n")
    done = shell.run("produce", "p7", "--raw", str(tmp_path / "odd.log"))
    assert "odd.log:2 is not UTF-8" in done.stderr
    assert shell.lines("read", "p7", "--data-only") == ['"fine"', '"odd \ufffd"']


def test_topic_verbs(shell: Shell) -> None:
    shell.run("topic", "create", "t1", "--set", "durability=fsync", "--set", "cap_records=5")
    assert shell.run("topic", "create", "t1", status=1).stderr
    info = json.loads(shell.lines("topic", "info", "t1", "--json")[0])
    assert (info["config"]["durability"], info["config"]["cap_records"]) == ("fsync", 5)
    changed = json.loads(shell.lines("topic", "config", "t1", "--set", "cap_records=9", "--json")[0])
    assert (changed["durability"], changed["cap_records"]) == ("fsync", 9)
    assert any(line.startswith("t1\t") for line in shell.lines("topic", "ls"))
    assert "would remove" in shell.run("topic", "rm", "t1", "--dry-run").stderr
    shell.run("topic", "rm", "t1", status=2)  # nobody to ask
    shell.run("topic", "rm", "t1", "--yes")
    assert not [line for line in shell.lines("topic", "ls") if line.startswith("t1\t")]


def test_a_reset_queue_stays_a_queue(shell: Shell) -> None:
    shell.run("topic", "create", "t2", "--set", "type=queue", "--set", "max_deliveries=3")
    config = json.loads(shell.lines("topic", "config", "t2", "--reset", "--set", "lease_ms=5000", "--json")[0])
    assert (config["type"], config["max_deliveries"], config["lease_ms"]) == ("queue", 0, 5000)


def test_queue_and_dead_letters(shell: Shell) -> None:
    shell.run(
        "topic", "create", "q1", "--set", "type=queue", "--set", "max_deliveries=1", "--set", "dead_letter=q1.dead"
    )
    shell.run("produce", "q1", stdin='{"to":"ada"}\n')
    job = json.loads(shell.lines("queue", "claim", "q1", "--node", "me")[0])
    assert (job["$seq"], job["data"]) == (1, {"to": "ada"})
    shell.run("queue", "extend", "q1", "1", "--node", "me", "--lease-ms", "9000")
    shell.run("queue", "nack", "q1", "1", "--node", "me")
    assert shell.lines("queue", "claim", "q1", "--node", "me") == []
    assert json.loads(shell.lines("dlq", "ls", "q1.dead", "--json")[0])["from"] == "q1"
    shell.run("dlq", "redrive", "q1.dead", "--yes")
    assert shell.lines("queue", "work", "q1", "--once", "--", "cat") == ['{"to":"ada"}']
    assert json.loads(shell.lines("queue", "stats", "q1", "--json")[0])["count"] == 0
    shell.run("dlq", "purge", "q1.dead", "--yes")


def test_schedules(shell: Shell) -> None:
    shell.run("schedule", "put", "s1", "s.t", '{"n": 1}', "--cron", "@daily", "--timezone", "Europe/Berlin")
    shell.run("schedule", "run", "s1")
    assert json.loads(shell.lines("schedule", "pause", "s1", "--json")[0])["next_tick"] is None
    shell.run("schedule", "resume", "s1")
    assert json.loads(shell.lines("schedule", "info", "s1", "--json")[0])["data"] == {"n": 1}
    [row] = [json.loads(line) for line in shell.lines("schedule", "ls", "--json")]
    assert (row["schedule"], row["topic"], row["when"]) == ("s1", "s.t", "@daily Europe/Berlin")
    shell.run("schedule", "rm", "s1", "--yes")
    assert shell.lines("schedule", "ls", "--json") == []


def test_routers(shell: Shell) -> None:
    shell.run("router", "put", "r->1", "r.s", "r.d")
    shell.run("produce", "r.s", stdin="1\n")
    assert shell.lines("read", "r.d", "--data-only") == ["1"]
    assert json.loads(shell.lines("router", "info", "r->1", "--json")[0])["forwarded_total"] == 1
    shell.run("router", "rm", "r->1", "--yes")
    assert not [line for line in shell.lines("router", "ls") if line.startswith("r->1")]


def test_a_bad_setting_ends_serve_before_the_disk_is_touched(shell: Shell, tmp_path: Path) -> None:
    done = shell.run("serve", status=2, TOPICS_PORT="many", TOPICS_DATA_DIR=str(tmp_path / "never"))
    assert "TOPICS_PORT" in done.stderr
    assert not (tmp_path / "never").exists()
    typo = shell.run("serve", status=2, TOPICS_DATA_DIRR="x")
    assert "TOPICS_DATA_DIR" in typo.stderr
    public = shell.run("serve", status=2, TOPICS_HOST="0.0.0.0", TOPICS_DATA_DIR=str(tmp_path / "never"))
    assert "TOPICS_API_KEYS" in public.stderr
    scope = shell.run("serve", status=2, TOPICS_API_KEYS="k:raed", TOPICS_DATA_DIR=str(tmp_path / "never"))
    assert "scope" in scope.stderr


def test_every_form_of_a_position(shell: Shell) -> None:
    topic = shell.client.topic("forms")
    topic.append_many(["a", "b", "c"])
    ts = next(iter(topic.read())).ts

    def data(*args: str) -> list[str]:
        return shell.lines("read", "forms", "--data-only", *args)

    assert data("--from", "start") == ['"a"', '"b"', '"c"']
    assert data("--from", "3") == ['"c"']
    assert data("--from", "-1") == ['"c"']
    assert data("--from", "end") == []
    assert data("--from", f"@{ts}") == ['"a"', '"b"', '"c"']
    assert data("--from", f"@{ts + 1}") == []
    assert data("--to", f"@{ts - 1}") == []
    assert data("--from", "2", "--to", "2") == ['"b"']
    assert data("--to", "-1", "-n", "1") == ['"a"']


def test_a_dry_run_answers_a_program(shell: Shell) -> None:
    topic = shell.client.topic("rehearsed")
    topic.append_many([1, 2, 3])
    shell.client.router("rehearsed->").put("rehearsed", "rehearsed.copy")
    shell.client.queue("rehearsed.jobs").configure()
    for args, answer in (
        (("delete", "rehearsed", "--before", "3"), {"topic": "rehearsed", "deleted": 2}),
        (("topic", "rm", "rehearsed"), {"topic": "rehearsed", "deleted": True}),
        (("dlq", "purge", "rehearsed"), {"topic": "rehearsed", "deleted": 3}),
        (("dlq", "redrive", "rehearsed", "--to", "rehearsed.jobs"), {"topic": "rehearsed", "redriven": 3}),
        (("router", "rm", "rehearsed->"), {"router": "rehearsed->", "deleted": True}),
    ):
        assert json.loads(shell.run(*args, "--dry-run", "--json").stdout) == {**answer, "dry_run": True}
    (line,) = shell.lines("topic", "config", "rehearsed", "--set", "cap_records=1", "--dry-run", "--json")
    assert (json.loads(line)["cap_records"], json.loads(line)["dry_run"]) == (1, True)
    assert topic.state().count == 3


def test_a_dry_delete_counts_what_it_would_take(shell: Shell) -> None:
    topic = shell.client.topic("dry")
    topic.append_many([Event(n, tag=f"t:{n % 3}") for n in range(2500)])
    assert "would delete 99 records" in shell.run("delete", "dry", "--before", "100", "--dry-run").stderr
    assert "would delete 834 records" in shell.run("delete", "dry", "--match", "t:0", "--dry-run").stderr
    both = shell.run("delete", "dry", "--match", "t:*", "--before", "4", "--dry-run")
    assert "would delete 3 records of dry below seq 4 and tagged t:*" in both.stderr
    assert topic.state().count == 2500
    done = json.loads(shell.lines("delete", "dry", "--match", "t:0", "--yes", "--json")[0])
    assert done["deleted"] == 834


def test_payloads_with_lone_surrogates_go_out_and_in(shell: Shell) -> None:
    text = '"\\ud800"'
    shell.run("produce", "surrogates", stdin=text + "\n")
    assert shell.lines("read", "surrogates", "--data-only") == [text]


def test_a_stream_that_breaks_says_how_far_it_came(shell: Shell) -> None:
    said = shell.run("produce", "broken", "--batch", "2", stdin="1\n\n2\n3\n{\n5\n", status=1).stderr
    assert "2 records appended to broken: the first 2 lines that are not blank" in said
    assert shell.lines("read", "broken", "--data-only") == ["1", "2"]


def test_a_line_without_an_end_does_not_fill_the_memory(shell: Shell) -> None:
    assert "more than 4194304 bytes" in shell.run("produce", "endless", stdin="x" * (5 << 20), status=1).stderr


def test_a_job_is_worked_on_whatever_its_tag_holds(shell: Shell) -> None:
    shell.client.queue("nul").append("job", tag="a\0b")
    assert shell.lines("queue", "work", "nul", "--once", "--", "sh", "-c", 'echo "$JOB_TAG"') == ["a\ufffdb"]
