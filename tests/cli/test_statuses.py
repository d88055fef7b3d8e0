"""Every exit status that `topics --help` lists, each by a command that ends with it."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Shell

from topics.cli import EXIT_STATUSES, main


def interrupted(shell: Shell, *args: str) -> int:
    """Ctrl-C as soon as the command has shown something."""
    with shell.begun(*args) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=30)
    assert "Traceback" not in said
    return child.returncode


PRODUCED = {0, 1, 2, 3, 130}


def test_the_tests_below_produce_every_status_that_is_documented() -> None:
    assert {int(number) for number in re.findall(r"^  (\d+) ", EXIT_STATUSES, re.MULTILINE)} == PRODUCED


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (("--version",), 0, ""),
        (("read", "absent"), 1, "absent"),
        (("topic", "ls", "--url", "http://127.0.0.1:9"), 1, "Connection refused; `topics serve` starts a server"),
        (("read", "just-a-log", "--from", "5"), 3, "'just-a-log' was created again or ends before the cursor"),
        (("bench", "--seconds", "0.01", "--path", "/proc"), 1, "bench-"),
        (("queue", "claim", "just-a-log"), 1, "queue"),
        (("topic", "ls", "--url", "ftp://nowhere"), 2, "http://"),
        (("topic", "ls", "--api-key", " "), 2, "key"),
        (("nonsense",), 2, "nonsense"),
        (("read",), 2, "TOPIC"),
        (("read", "x", "--from", "soon"), 2, "no position"),
        (("read", "x", "--from", "--5"), 2, "no position"),
        (("read", "x", "--from", "²"), 2, "no position"),
        (("read", "x", "--from", "99999999999999999999"), 2, "no position"),
        (("read", "x", "--from", "@noon"), 2, "no time"),
        (("read", "just-a-log", "--to", "@99999999999999999999"), 0, ""),
        (("bench", "--seconds", "nan"), 2, "seconds"),
        (("bench", "--seconds", "inf"), 2, "seconds"),
        (("read", "x", "--to", "3", "--follow"), 2, "exclude"),
        (("read", "x", "-n", "-1"), 2, "-1"),
        (("topic", "create", "x", "--set", "nope=1"), 2, "nope"),
        (("topic", "create", "x", "--set", "cap_records=many"), 2, "cap_records"),
        (("topic", "create", "x", "--set", "cap_records=-1"), 2, "cap_records"),
        (("topic", "create", "x", "--set", "durability=sometimes"), 2, "ephemeral, memory, disk, fsync"),
        (("topic", "create", "x", "--set", "type=list"), 2, "log, queue"),
        (("topic", "create", "\udcff"), 2, "name is not valid UTF-8"),
        (("topic", "ls", "--prefix", "\udcff"), 2, "prefix is not valid UTF-8"),
        (("produce", "x", "--tag", "\udcff"), 2, "tag is not valid UTF-8"),
        (("read", "x", "--exclude-node", "\udcff"), 2, "exclude-node is not valid UTF-8"),
        (("delete", "x"), 2, "--before"),
        (("queue", "ack", "x", "one"), 2, "one"),
        (("inspect", ".", "--wal", "--frames"), 2, "one of"),
    ],
)
def test_statuses_0_1_and_2(
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    args: tuple[str, ...],
    status: int,
    said: str,
) -> None:
    """In this process, for there are many; the others below are processes of their own."""
    monkeypatch.setattr(sys, "argv", ["topics", *args])
    monkeypatch.setenv("TOPICS_URL", shell.url)
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capfd.readouterr()
    assert (ended.value.code or 0) == status
    assert said in shown.err
    assert status == 0 or shown.out == ""


@pytest.fixture(autouse=True)
def just_a_log(shell: Shell) -> None:
    shell.client.topic("just-a-log").configure()


def test_status_2_before_anything_is_destroyed_without_a_yes(shell: Shell) -> None:
    shell.client.topic("kept").append_many([1, 2, 3])
    for args in (
        ("topic", "rm", "kept"),
        ("delete", "kept", "--before", "3"),
        ("dlq", "purge", "kept"),
        ("topic", "config", "kept", "--set", "cap_records=1"),
        ("topic", "config", "kept", "--set", "ttl_ms=1"),
    ):
        assert "--yes" in shell.run(*args, status=2).stderr
    assert "remove 2 records" in shell.run("topic", "config", "kept", "--set", "cap_records=1", "--dry-run").stderr
    assert shell.client.topic("kept").state().count == 3
    shell.run("topic", "config", "kept", "--set", "cap_records=10")  # takes nothing away, so nobody asks
    shell.run("topic", "config", "kept", "--set", "cap_records=1", "--yes")
    assert shell.client.topic("kept").state().count == 1


def test_status_3_if_records_were_lost(shell: Shell) -> None:
    lossy = shell.client.topic("lossy", cap_records=1)
    lossy.append_many([1, 2, 3])
    assert "--gaps" in shell.run("read", "lossy", "--from", "2", status=3).stderr
    assert "--gaps" in shell.run("tail", "lossy", "--from", "2", status=3).stderr
    first, *_ = shell.lines("read", "lossy", "--from", "2", "--gaps")
    assert '"reason":"cap"' in first
    assert shell.lines("read", "lossy", "--data-only") == ["3"]


def test_status_130_if_interrupted(shell: Shell) -> None:
    shell.client.topic("endless").append(1)
    assert interrupted(shell, "tail", "endless") == 130
    assert interrupted(shell, "read", "endless", "--follow") == 130


def test_an_interrupted_import_says_how_far_it_came(shell: Shell) -> None:
    topic = shell.client.topic("endless.in")
    topic.configure()
    with shell.begun("produce", "endless.in", "--batch", "1", stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        arrived = topic.follow()
        for line in ("1\n", "2\n"):
            child.stdin.write(line)
            child.stdin.flush()
            next(arrived)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=30)
    assert child.returncode == 130
    assert re.search("at least [12] records appended to endless.in", said)


INTERRUPTED_WHILE_LOADING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.%s)
sys.meta_path.insert(0, Finder())
sys.argv = ["topics", "--version"]
from topics.__main__ import main
main()
"""


@pytest.mark.parametrize(("handler", "status"), [("default_int_handler", -signal.SIGINT), ("SIG_IGN", 0)])
def test_an_interrupt_while_the_command_is_loaded_shows_nothing(handler: str, status: int) -> None:
    text = INTERRUPTED_WHILE_LOADING % handler
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (status, "")


def test_a_worker_that_is_interrupted_finishes_its_job_first(shell: Shell, tmp_path: Path) -> None:
    queue = shell.client.queue("slow")
    queue.append_many([1, 2])
    command = ("sh", "-c", "echo begun; sleep 0.5; echo $JOB_SEQ > done")
    with shell.begun("queue", "work", "slow", "--", *command) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=30)
    assert (child.returncode, (tmp_path / "done").read_text()) == (0, "1\n")
    assert [record.seq for record in queue.read()] == [2]
    assert interrupted(shell, "queue", "work", "slow", "--", *command) == 130
    assert queue.state().count == 0


def test_a_worker_hears_a_signal_that_came_to_another_thread(shell: Shell, tmp_path: Path) -> None:
    """The system may give it to any: `tgkill` does so each time."""
    queue = shell.client.queue("deaf")
    queue.append(1)
    with shell.begun("queue", "work", "deaf", "--", "sh", "-c", "echo begun") as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        threads = {int(each.name) for each in Path(f"/proc/{child.pid}/task").iterdir()} - {child.pid}
        assert ctypes.CDLL(None).tgkill(child.pid, min(threads), int(signal.SIGTERM)) == 0
        child.communicate(timeout=30)
    assert child.returncode == 0


def test_a_reader_that_goes_away_ends_quietly(shell: Shell) -> None:
    shell.client.topic("long").append_many(["x" * 1000] * 2000)
    with shell.begun("read", "long") as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.stdout.close()
        assert child.stderr is not None
        said = child.stderr.read()
    assert "Traceback" not in said
    assert "Exception" not in said


def test_a_command_that_cannot_be_run_is_told(shell: Shell) -> None:
    queue = shell.client.queue("unrunnable")
    queue.append(1)
    done = shell.run("queue", "work", "unrunnable", "--once", "--", "./no-such-command", status=1)
    assert "no-such-command" in done.stderr
    assert queue.state().queue.ready == 1  # type: ignore[union-attr]


def test_a_job_may_call_topics_itself(shell: Shell) -> None:
    shell.client.queue("outer").append({"n": 1})
    shell.run("queue", "work", "outer", "--once", "--", *shell.command("produce", "copied"))
    assert shell.lines("read", "copied", "--data-only") == ['{"n":1}']


def test_stdout_holds_data_and_nothing_else(shell: Shell) -> None:
    done = shell.run("produce", "quiet", stdin="1\n")
    assert done.stdout == ""
    assert "1 records appended" in done.stderr


@pytest.mark.parametrize(
    ("redirection", "status", "said"),
    [
        (">/dev/full", 1, "topics: No space left on device\n"),
        (">&-", 0, ""),
        ("<&-", 0, ""),
        ("2>&- >&- <&-", 0, ""),
    ],
)
def test_streams_that_are_closed_or_full_make_no_traceback(
    shell: Shell, redirection: str, status: int, said: str
) -> None:
    shell.client.topic("just-a-log").append(1)
    command = " ".join(shell.command("read", "just-a-log"))
    environ = {**os.environ, "TOPICS_URL": shell.url}
    done = subprocess.run(["sh", "-c", f"{command} {redirection}"], stderr=subprocess.PIPE, text=True, env=environ)
    assert (done.returncode, done.stderr) == (status, said)


def test_an_argument_that_is_not_text_is_refused(shell: Shell) -> None:
    assert "not valid UTF-8" in shell.run("topic", "ls", "--prefix", "\udcff", status=2).stderr
