"""Starting Spark: a session with the settings that suit the `topics` source, or one sentence on what is missing.

Workers must run the interpreter that has this package, and a key given as an option must not show in a plan. Everything
can be overridden with `conf`. Called by users as `topics.spark.session()` and by the jobs of the command line.

`checks` is for `topics doctor`: Java, the workers' interpreter, and packages that hide data sources from Spark. Each
finding has a name, whether it is as it should be, and a sentence that says what to do if not. Nothing is started.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from topics.errors import ConfigError
from topics.spark.planning.batch import PARALLELISM_ENV

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MAJOR_MIN: Final = 17
REDACTION: Final = "(?i)secret|password|token|access[.]?key|api[.]?key|credential"

LOG4J: Final = Path(__file__).with_name("log4j2.properties")
LAUNCHER: Final = Path(__file__).with_name("python.sh")

_CONF: Final = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "topics.spark.daemon",
    "spark.redaction.regex": REDACTION,
    "spark.sql.redaction.options.regex": "(?i)url|api[.]?key",
    "spark.sql.redaction.string.regex": "://[^/@\\s]+:[^/@\\s]+@",  # a location with keys in it
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG4J} -Dtopics.spark.log=warn",
}
_NOISE: Final = b"WARNING: Using incubator modules"  # Java's own, of a module that Spark asks for


def session(
    app_name: str = "topics", *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A Spark session; the one that there is, if there is one. It is the active one of the calling thread then."""
    check_ready()
    from pyspark.sql import SparkSession

    given = dict(conf or {})
    chosen = master or given.pop("spark.master", None) or os.environ.get("SPARK_MASTER") or "local[*]"
    prepare_environment(chosen)
    builder = SparkSession.builder.appName(app_name).master(chosen)
    for name, value in {**_CONF, **_for_executors(chosen), **given}.items():
        builder = builder.config(name, value)
    with _without_noise():
        made = builder.getOrCreate()
    if SparkSession.getActiveSession() is None:
        _activate(made)
    return made


@contextmanager
def _without_noise() -> Iterator[None]:
    """Java that is started meanwhile writes to stderr through a pipe of ours, which passes on all but `_NOISE`. Java
    keeps the stderr that it is started with, so a thread reads the pipe as long as we live."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None:  # Java runs already
        yield
        return
    source, target = os.pipe()
    stderr = os.dup(2)
    os.dup2(target, 2)
    os.close(target)
    threading.Thread(target=_pass_on, args=(source, stderr), name="topics-java-stderr", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(stderr, 2)


def _pass_on(source: int, stderr: int) -> None:
    with open(source, "rb") as lines, open(stderr, "wb", buffering=0) as out:
        for line in lines:
            if not line.startswith(_NOISE):
                out.write(line)


def _activate(session: SparkSession) -> None:
    """A write looks for its format in the active session of its thread, and finds no Python source without one.

    Spark activates a session for the thread that made it; for others nothing but this call does."""
    session.createDataFrame([], "nothing INT")


def check_ready() -> None:
    """Raises ConfigError with one sentence when Spark cannot run here."""
    problem = missing()
    if problem is not None:
        raise ConfigError(problem)


def missing() -> str | None:
    """What has to be installed before Spark runs, or None."""
    if importlib.util.find_spec("pyspark") is None:
        return "Spark is not installed: pip install 'topicsdb[spark]'"
    major = java_major()
    if major is None:
        return (
            f"Spark needs Java {JAVA_MAJOR_MIN} or newer and none was found: install one "
            "(apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
        )
    if major < JAVA_MAJOR_MIN:
        return (
            f"Spark needs Java {JAVA_MAJOR_MIN} or newer and found Java {major}: install a newer one or set JAVA_HOME"
        )
    return None


def java_major() -> int | None:
    """Major version of the Java that Spark would run; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return None
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    return int(found[1]) if found else None


def source_packages() -> list[str]:
    """Packages in which Spark looks for data sources."""
    return sorted({info.name for info in pkgutil.iter_modules() if info.name.startswith("pyspark_")})


def broken_source_packages() -> dict[str, str]:
    """`pyspark_*` packages that do not import, and why: one of them hides every source from Spark."""
    broken: dict[str, str] = {}
    for name in source_packages():
        try:
            importlib.import_module(name)
        except Exception as error:  # anything at all that a foreign package may raise
            broken[name] = f"{type(error).__name__}: {error}"
    return broken


def prepare_environment(master: str) -> None:
    """What the Java process and its Python workers inherit."""
    python = _quick_python() if master.startswith("local") else sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", python)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
    os.environ["PYTHONPATH"] = python_path()
    cores = re.fullmatch(r"local\[(\d+|\*)(?:,\d+)?\]", master)
    if cores is not None:
        count = os.cpu_count() or 1 if cores[1] == "*" else int(cores[1])
        os.environ.setdefault(PARALLELISM_ENV, str(count))
    elif master == "local":
        os.environ.setdefault(PARALLELISM_ENV, "1")


def _quick_python() -> str:
    """This interpreter by way of `python.sh`, where PySpark is an installed package with its archives inside."""
    found = importlib.util.find_spec("pyspark")
    # Without links, for so Spark names the archives.
    home = Path(found.origin).resolve().parent if found is not None and found.origin is not None else Path()
    if not (home / "python" / "lib" / "pyspark.zip").is_file() or not os.access(LAUNCHER, os.X_OK):
        return sys.executable
    os.environ["_TOPICS_SPARK_HOME"], os.environ["_TOPICS_SPARK_PYTHON"] = str(home), sys.executable
    return str(LAUNCHER)


def python_path() -> str:
    """PYTHONPATH with the folder of this package in it, so that a source checkout works as an installation does."""
    ours = str(Path(__file__).resolve().parents[2])
    given = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join(given if ours in given else [ours, *given])


def _for_executors(master: str) -> dict[str, str]:
    """On a cluster of this machine executors inherit nothing; elsewhere the user ships an environment."""
    if master.startswith("local"):
        return {}
    return {"spark.executorEnv.PYTHONPATH": python_path()}


Finding = tuple[str, bool, str]

PYSPARK_SERIES: Final = ("4.0.", "4.1.", "4.2.", "4.3.")
PANDAS_MAJOR_END: Final = 3
_IMPORT_TIMEOUT_S: Final = 60


def checks() -> Iterator[Finding]:
    """Findings in the order in which a user would repair them."""
    version = importlib.metadata.version("pyspark")
    wanted = "" if version.startswith(PYSPARK_SERIES) else "; topics is for 4.0 to 4.3: pip install 'topicsdb[spark]'"
    yield "pyspark", not wanted, f"{version}{wanted}"
    problem = missing()
    yield "java", problem is None, problem or f"Java {java_major()}"
    yield _interpreter()
    if importlib.util.find_spec("pandas") is not None:
        yield _pandas()
    yield from _sources()


def _interpreter() -> Finding:
    """Workers run PYSPARK_PYTHON, or `python3` from PATH; `topics.spark.session()` names its own if nobody did."""
    chosen = os.environ.get("PYSPARK_PYTHON")
    python = shutil.which(chosen or "python3")
    if python is None and chosen:
        return "spark interpreter", False, f"PYSPARK_PYTHON is {chosen}, which is no program; unset it"
    if python is not None and _has_topics(python):
        return "spark interpreter", True, f"{python} has topics"
    if chosen:
        return "spark interpreter", False, f"PYSPARK_PYTHON is {chosen}, which cannot import topics; unset it"
    hint = f"sessions of topics.spark.session() run {sys.executable}; for others set PYSPARK_PYTHON to it"
    return "spark interpreter", True, f"{python or 'python3'} cannot import topics: {hint}"


def _has_topics(python: str) -> bool:
    if python == sys.executable:
        return True
    try:
        told = subprocess.run(
            [python, "-c", "import topics.spark.source"], capture_output=True, timeout=_IMPORT_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return told.returncode == 0


def _pandas() -> Finding:
    version = importlib.metadata.version("pandas")
    old_enough = int(version.partition(".")[0]) < PANDAS_MAJOR_END
    return "pandas", old_enough, version if old_enough else f"{version} is too new for PySpark: pip install 'pandas<3'"


def _sources() -> Iterator[Finding]:
    broken = broken_source_packages()
    for name in source_packages():
        if name in broken:
            problem = f"cannot be imported ({broken[name]}): Spark finds no data source at all until it is repaired"
            yield f"data source {name}", False, problem
        else:
            yield f"data source {name}", True, "found by Spark without registration"
    if "pyspark_topics" not in source_packages():
        yield "data source pyspark_topics", False, "not on the path: install topics, or put its folder in PYTHONPATH"
