"""What a stranger does first: `pip install` into an empty environment, then the README, the tutorial and the guides."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest
from tests.api.server import LiveServer
from tests.readme.pages import WITH_THE_WHEEL, follow
from tests.readme.test_readme import BLOCKS, ROOT, check_tour, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FIRST_LOAD_S = 0.1
FIRST_HELP_S = 0.3
MB = 1 << 20
SIZE_MB_MAX = 140  # with numpy (75), which the engine computes with, and uvloop (14)
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "src")
HEAVY = ("pyarrow", "pandas", "pyspark", "deltalake")


def checked(*words: str, cwd: Path) -> str:
    """A command; what the clone has, its own metadata included, is not on the path."""
    done = subprocess.run(
        words, cwd=cwd, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing but the wheel and what it asks for. The wheel is built from the source archive."""
    place = tmp_path_factory.mktemp("stranger")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    source = place / "clone"
    source.mkdir()
    for name in SOURCES:  # a copy: building writes beside the sources
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, source / name)
    for built in source.rglob("*.so"):
        built.unlink()
    checked(sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(place), cwd=source)
    (archive,) = place.glob("topicsdb-*.tar.gz")
    checked(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place), str(archive), cwd=place)
    (wheel,) = place.glob("topicsdb-*.whl")
    checked(sys.executable, "-m", "venv", "env", cwd=place)
    python = place / "env" / "bin" / "python"
    done = subprocess.run(
        [str(python), *pip[1:], "install", str(wheel)],
        cwd=place,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=500,
    )
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("no package index can be reached")
    assert done.returncode == 0, done.stderr[-3000:]
    return python


def test_the_tour_runs_where_only_the_wheel_is_installed(environment: Path, tmp_path: Path) -> None:
    with LiveServer(tmp_path / "served") as server:
        kinds = [(kind, text) for kind, text in BLOCKS if kind != "python spark"]
        check_tour([run(kind, text, server, tmp_path, python=environment) for kind, text in kinds])


@pytest.mark.parametrize("page", WITH_THE_WHEEL, ids=lambda page: page.stem)
def test_a_page_can_be_followed_as_written(page: Path, environment: Path, tmp_path: Path) -> None:
    with LiveServer(tmp_path / "served") as server:
        follow(page, server, tmp_path, python=environment)


def test_the_wheel_has_the_native_codecs(environment: Path, tmp_path: Path) -> None:
    assert "(native)" in checked(str(environment.parent / "topics"), "--version", cwd=tmp_path)


def test_the_wheel_serves(environment: Path, tmp_path: Path) -> None:
    where = tmp_path / "address"
    environ = {**os.environ, "TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(where), "TOPICS_DATA_DIR": str(tmp_path / "d")}
    environ.pop("PYTHONPATH", None)
    server = subprocess.Popen([str(environment.parent / "topics"), "serve"], cwd=tmp_path, env=environ)
    try:
        while not where.exists() or not where.read_text():
            assert server.poll() is None
            time.sleep(0.05)
        program = "import sys, topics; topics.connect(sys.argv[1]).topic('a').append(1)"
        checked(str(environment), "-c", program, f"http://{where.read_text().strip()}", cwd=tmp_path)
    finally:
        server.terminate()
        assert server.wait(30) == 0


def test_the_base_is_small_and_quick_to_load(environment: Path, tmp_path: Path) -> None:
    site = Path(
        checked(str(environment), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip()
    )
    assert site != Path(sysconfig.get_path("purelib"))
    ours = [entry for entry in site.iterdir() if not entry.name.startswith(("pip", "setuptools", "pkg_resources"))]
    assert not [entry.name for entry in ours if entry.name in HEAVY]
    size = sum(file.stat().st_size for entry in ours for file in ([entry] if entry.is_file() else entry.rglob("*")))
    assert size < SIZE_MB_MAX * MB
    for program, goal_s in (
        ("import topics", FIRST_LOAD_S),
        ("import sys; sys.argv[1:] = ['--help']; import topics.cli as c; c.cli(standalone_mode=False)", FIRST_HELP_S),
    ):
        timed = f"import time; began = time.process_time()\n{program}\nprint(time.process_time() - began)"
        spent_s = min(float(checked(str(environment), "-c", timed, cwd=tmp_path).split()[-1]) for _ in range(3))
        assert spent_s < goal_s, program
