"""What is missing for Spark is said in one sentence, and `topics doctor` looks for it; verbs: `test_without_java`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.spark.served import ROOT, run_cli

pytest.importorskip("pyspark")


def test_without_java_the_session_says_so_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import topics.spark
    from topics.errors import ConfigError

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="Spark needs Java 17 or newer and none was found"):
        topics.spark.session()
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME")
    with pytest.raises(ConfigError, match="found Java 11"):
        topics.spark.session()


def test_the_session_stays_a_function_however_often_it_is_named() -> None:
    """A module of that name would take its place as soon as it is imported."""
    import topics.spark

    assert callable(topics.spark.session)
    assert callable(topics.spark.session)


def test_without_spark_the_sentence_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from topics.spark.start import missing

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert missing() == "Spark is not installed: pip install 'topicsdb[spark]'"


def findings(**environment: str) -> tuple[int, dict[str, dict[str, object]]]:
    done = run_cli("doctor", "--json", **environment)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, {row["check"]: row for row in rows}


def test_the_doctor_finds_a_broken_package_that_hides_all_sources(tmp_path: Path) -> None:
    (tmp_path / "pyspark_bad").mkdir()
    (tmp_path / "pyspark_bad" / "__init__.py").write_text("import nothing_of_that_name\n")
    code, found = findings(PYTHONPATH=f"{ROOT / 'src'}{os.pathsep}{tmp_path}")
    assert code == 1
    assert not found["data source pyspark_bad"]["ok"]
    assert "nothing_of_that_name" in str(found["data source pyspark_bad"]["finding"])
    assert found["data source pyspark_topics"]["ok"]


def test_the_doctor_looks_at_java_and_interpreter(tmp_path: Path) -> None:
    code, found = findings(PATH=str(tmp_path), JAVA_HOME="", PYSPARK_PYTHON="/no/python")
    assert code == 1
    assert "Java 17" in str(found["java"]["finding"])
    assert (found["java"]["ok"], found["spark interpreter"]["ok"]) == (False, False)
    assert "/no/python" in str(found["spark interpreter"]["finding"])
