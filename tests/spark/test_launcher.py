"""Python processes of a session take PySpark from where it is installed, not from an archive, and lose nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from topics.spark import start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pyspark = pytest.importorskip("pyspark")
SHOW = "import os, sys; print(os.environ['PYTHONPATH'], sys.executable, sys.argv[1:], sep='\\n')"


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has chosen an interpreter; what a test chooses goes with it."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_only_what_lies_in_sparks_own_folder_is_left_out(tmp_path: Path) -> None:
    home = tmp_path / "a b" / "pyspark"
    given = [f"{home}/python/lib/pyspark.zip", "/one", f"{home}/jars/x.jar", "/t*o", f"{home}/python/lib/pyspark.zip"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(given),
        "_TOPICS_SPARK_HOME": str(home),
        "_TOPICS_SPARK_PYTHON": sys.executable,
    }
    command = [str(start.LAUNCHER), "-c", SHOW, "x:y", "a b", "*"]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout
    assert told.splitlines() == [f"/one:/t*o:{tmp_path}/a b", sys.executable, "['x:y', 'a b', '*']"]


@pytest.mark.usefixtures("untold")
def test_somebody_elses_choice_stays() -> None:
    os.environ["PYSPARK_PYTHON"] = "/usr/bin/python3"
    start.prepare_environment("local[2]")
    assert os.environ["PYSPARK_PYTHON"] == "/usr/bin/python3"
    assert os.environ["PYSPARK_DRIVER_PYTHON"] == str(start.LAUNCHER)


@pytest.mark.usefixtures("untold")
def test_a_cluster_gets_the_interpreter_itself() -> None:
    start.prepare_environment("spark://elsewhere:7077")
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.usefixtures("untold")
def test_without_the_launcher_it_is_the_interpreter_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(start, "LAUNCHER", tmp_path / "none")
    start.prepare_environment("local")
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.spark
def test_workers_have_the_installed_modules(spark: SparkSession) -> None:
    def where(_: int) -> str:
        import pyspark

        return str(pyspark.__file__)

    assert spark.sparkContext.parallelize([0], 1).map(where).collect() == [os.path.realpath(pyspark.__file__)]
