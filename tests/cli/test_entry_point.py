"""The command as a user meets it: a real process, its output and its exit status."""

import json
import os
import subprocess
import sys
from pathlib import Path

import topics
from topics.formats.kernel_choice import KERNEL

SRC = Path(topics.__file__).parents[1]


def run(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: text for name, text in os.environ.items() if not name.startswith("TOPICS_")}
    environ = clean | {"PYTHONPATH": str(SRC)} | variables
    command = [sys.executable, "-m", "topics.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environ, timeout=60)


def test_version_prints_the_version(tmp_path: Path) -> None:
    done = run("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"topics {topics.__version__} ({KERNEL})\n")


def test_the_kernel_can_be_chosen_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    assert run("--version", cwd=tmp_path, TOPICS_KERNEL="pure").stdout == f"topics {topics.__version__} (pure)\n"
    done = run("doctor", cwd=tmp_path, TOPICS_KERNEL="fast")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "topics: TOPICS_KERNEL: 'fast' is not allowed; it takes native or pure\n"


def test_a_bad_value_exits_with_two_and_one_sentence_before_touching_the_disk(tmp_path: Path) -> None:
    done = run("config", "show", cwd=tmp_path, TOPICS_PORT="many", TOPICS_DATA_DIR=str(tmp_path / "data"))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "topics: TOPICS_PORT: 'many' is not allowed; it takes a whole number from 0 to 65535\n"
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_variable_exits_with_two_and_names_the_nearest(tmp_path: Path) -> None:
    done = run("config", "show", cwd=tmp_path, TOPICS_PROT="1")
    assert done.returncode == 2
    assert "TOPICS_PROT" in done.stderr
    assert "TOPICS_PORT" in done.stderr


def test_config_show_writes_one_line_per_setting_when_piped(tmp_path: Path) -> None:
    done = run("config", "show", "--origin", cwd=tmp_path, TOPICS_PORT="5000")
    lines = dict(line.split("\t", 1) for line in done.stdout.splitlines())
    assert lines["TOPICS_PORT"] == "5000\tenv"
    assert lines["TOPICS_HOST"] == "127.0.0.1\tdefault"
    assert "\t" not in run("config", "show", cwd=tmp_path).stdout.splitlines()[0].split("\t", 1)[1]


def test_config_show_json_is_one_object_per_line(tmp_path: Path) -> None:
    done = run("config", "show", "--json", "--origin", cwd=tmp_path, TOPICS_SALVAGE="1")
    rows = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
    assert rows["TOPICS_SALVAGE"]["value"] is True
    assert rows["TOPICS_SALVAGE"]["origin"] == "env"
    assert rows["TOPICS_COLD_DIR"]["value"] is None


def test_config_show_reports_what_it_clamped_apart_from_the_data(tmp_path: Path) -> None:
    done = run("config", "show", cwd=tmp_path, TOPICS_WAL_SHARDS="900")
    assert done.returncode == 0
    assert "TOPICS_WAL_SHARDS is 900; using 64" in done.stderr
    assert "TOPICS_WAL_SHARDS\t64" in done.stdout


def test_config_show_never_shows_a_secret(tmp_path: Path) -> None:
    for flag in ("--origin", "--json"):
        done = run("config", "show", flag, cwd=tmp_path, TOPICS_API_KEYS="hunter2:read")
        assert "hunter2" not in done.stdout + done.stderr
        assert "(set)" in done.stdout


def test_an_unknown_command_exits_with_two(tmp_path: Path) -> None:
    done = run("fly", cwd=tmp_path)
    assert done.returncode == 2
    assert "fly" in done.stderr


def test_a_data_directory_that_cannot_be_one_ends_the_server_with_one_sentence(tmp_path: Path) -> None:
    taken = tmp_path / "data"
    taken.write_text("mine")
    done = run("serve", cwd=tmp_path, TOPICS_PORT="0", TOPICS_DATA_DIR=str(taken))
    assert done.returncode == 1
    assert done.stderr == f"topics: {taken} cannot be used as the data directory: File exists\n"
    assert taken.read_text() == "mine"
