"""A topic into a file and back: the same records, whatever they hold, also after an interruption."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Shell

from topics import Event, Json
from topics.model.results import Record

EVENTS = [
    Event(Json(b'{"b":1.50,  "a":[null]}'), tag="t:1", node="n", meta={"k": "\u00fc"}),
    Event(Json(b'{\n  "lines": "between tokens",\r\n  "n": 1e3\n}'), tag="", meta=Json(b'{\n"m":1}')),
    Event(Json(b'"\\ud800 ,\\"m\\":"'), node="\u20ac"),
    Event(None),
    Event({"$seq": 1, "$ts": 2, "data": 3}),
    Event({"gap": {"topic": "x", "gap_from": 1, "gap_to": 2, "reason": "cap"}}),
]


def facts(shell: Shell, topic: str) -> list[tuple[object, ...]]:
    return [
        (bytes(r.data), r.tag, r.node, bytes(r.meta) if r.meta else None)  # type: ignore[arg-type]
        for r in shell.client.topic(topic).read()
        if isinstance(r, Record)
    ]


@pytest.mark.parametrize("name", ["all.jsonl", "all.parquet"])
def test_every_record_comes_back_byte_for_byte(shell: Shell, tmp_path: Path, name: str) -> None:
    source, copy, file = f"out-{name}", f"in-{name}", str(tmp_path / name)
    shell.client.topic(source).append_many(EVENTS)
    done = shell.run("export", source, file, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["count"] == len(EVENTS)
    done = shell.run("import", file, copy, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert facts(shell, copy) == facts(shell, source)
    assert not Path(f"{file}.part").exists()


def test_a_file_is_not_replaced_unless_asked(shell: Shell, tmp_path: Path) -> None:
    shell.client.topic("once").append_many([1, 2])
    file = str(tmp_path / "once.jsonl")
    assert shell.run("export", "once", file).returncode == 0
    assert "exists" in shell.run("export", "once", file, status=1).stderr
    assert shell.run("export", "once", file, "--from", "2", "--force").returncode == 0
    assert len(Path(file).read_text().splitlines()) == 1


def test_an_export_goes_on_behind_what_an_interrupted_one_wrote(shell: Shell, tmp_path: Path) -> None:
    shell.client.topic("cut").append_many(list(range(10)))
    file = tmp_path / "cut.jsonl"
    assert shell.run("export", "cut", str(file)).returncode == 0
    whole = file.read_bytes()
    file.unlink()
    lines = whole.splitlines(keepends=True)
    Path(f"{file}.part").write_bytes(b"".join(lines[:4]) + lines[4][:7])
    done = shell.run("export", "cut", str(file), "--json")
    assert (json.loads(done.stdout)["count"], file.read_bytes()) == (10, whole)


def test_an_import_goes_on_behind_what_an_interrupted_one_appended(shell: Shell, tmp_path: Path) -> None:
    shell.client.topic("from").append_many([{"n": at} for at in range(2500)])
    file = str(tmp_path / "from.parquet")
    assert shell.run("export", "from", file).returncode == 0
    shell.client.topic("half").append_many([{"n": at} for at in range(1200)])
    done = shell.run("import", file, "half", "--json")
    assert json.loads(done.stdout) == {"topic": "half", "file": file, "count": 1300, "skipped": 1200}
    assert facts(shell, "half") == facts(shell, "from")
    again = shell.run("import", file, "half", "--json")
    assert json.loads(again.stdout)["count"] == 0


def test_an_import_into_other_records_is_refused_unless_it_shall_append(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "few.jsonl"
    file.write_text('{"n":1}\n{"n":2}\n')
    shell.client.topic("other").append({"n": 7})
    assert "--append" in shell.run("import", str(file), "other", status=1).stderr
    assert shell.client.topic("other").state().head_seq == 1
    assert shell.run("import", str(file), "other", "--append").returncode == 0
    assert [fact[0] for fact in facts(shell, "other")] == [b'{"n":7}', b'{"n":1}', b'{"n":2}']


@pytest.mark.parametrize("name", ["lost.jsonl", "lost.parquet"])
def test_a_gap_ends_an_export_or_is_noted(shell: Shell, tmp_path: Path, name: str) -> None:
    topic = shell.client.topic(f"lost-{name}", cap_records=5)
    topic.append_many(list(range(20)))
    file = str(tmp_path / name)
    ended = shell.run("export", topic.name, file, "--from", "3", status=3)
    assert ("--gaps" in ended.stderr, Path(file).exists()) == (True, False)
    Path(f"{file}.part").unlink(missing_ok=True)
    noted = shell.run("export", topic.name, file, "--from", "3", "--gaps", "--json")
    assert json.loads(noted.stdout)["count"] == 5
    assert b'"gap_from":3' in Path(file).read_bytes()


def test_a_file_of_another_kind_is_named(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "no.parquet"
    file.write_text("{}")
    assert "is no Parquet file" in shell.run("import", str(file), "nothing", status=1).stderr
    assert "absent.jsonl" in shell.run("import", str(tmp_path / "absent.jsonl"), "nothing", status=1).stderr
