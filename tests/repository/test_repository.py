"""Promises of the repository itself: plain pins, one way to test, nothing of anybody's machine."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import LONGEST

ROOT = Path(__file__).resolve().parents[2]
PIN_FILES = sorted(ROOT.glob("requirements*.txt"))
PIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.!+]*")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def pins(*files: str) -> dict[str, str]:
    lines = [line for file in files for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]
    return {normal(name): version for name, version in (line.split("==") for line in lines)}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def direct(requirements: list[str]) -> set[str]:
    return {normal(match[0]) for match in map(NAME.match, requirements) if match}


@pytest.mark.parametrize("file", PIN_FILES, ids=lambda file: file.name)
def test_a_requirements_file_holds_only_exact_pins_and_comments(file: Path) -> None:
    wrong = [line for line in file.read_text().splitlines() if not line.startswith("# ") and not PIN.fullmatch(line)]
    assert wrong == []


@pytest.mark.parametrize("file", PIN_FILES, ids=lambda file: file.name)
def test_a_requirements_file_names_no_address_and_no_hash(file: Path) -> None:
    text = file.read_text()
    assert not re.search(r"://|--hash|--index|--find-links|@", text)


def test_every_direct_dependency_is_pinned_where_it_is_installed_from() -> None:
    extras = project()["optional-dependencies"]
    assert direct(project()["dependencies"]) <= set(pins("requirements.txt"))
    assert direct(extras["spark"]) <= set(pins("requirements.txt", "requirements-spark.txt"))
    assert direct(extras["dev"]) <= set(pins("requirements.txt", "requirements-dev.txt"))


def test_a_package_has_the_same_pin_in_every_file() -> None:
    seen: dict[str, str] = {}
    for file in PIN_FILES:
        for name, version in pins(file.name).items():
            assert seen.setdefault(name, version) == version, name


def test_the_version_is_the_same_in_both_places() -> None:
    import topics

    assert project()["version"] == topics.__version__


def test_ci_runs_exactly_make_test() -> None:
    commands = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if "make" in line]
    assert commands == ["exec make test"]


def test_the_files_that_begin_first_exist() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / f"{name}.py").is_file()] == []


@pytest.mark.parametrize("script", sorted((ROOT / "scripts").glob("*.sh")), ids=lambda script: script.name)
def test_every_script_is_executable_and_parses(script: Path) -> None:
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=30)


def test_missing_system_packages_are_named_in_one_sentence_and_do_not_fail(tmp_path: Path) -> None:
    # A PATH with nothing but the shell's own helpers: no java, no apt-get.
    for tool in ("bash", "id", "sed"):
        found = subprocess.run(["which", tool], capture_output=True, text=True, check=True, timeout=30).stdout.strip()
        (tmp_path / tool).symlink_to(found)
    script = str(ROOT / "scripts" / "system-packages.sh")
    done = subprocess.run(
        [str(tmp_path / "bash"), script, "java"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert "install openjdk-17-jre-headless to have it." in done.stderr


INSTALL = re.compile(r"pip install (?P<rest>[^\n`\"]*)")


def installed_names(text: str) -> set[str]:
    """The names of packages that a text tells its reader to install, apart from options, files and folders."""
    found: set[str] = set()
    for match in INSTALL.finditer(text):
        for word in re.split(r"[\s\\&;:]+", match["rest"].replace("'", "")):
            if (name := NAME.match(word)) and "/" not in word and not word.endswith((".txt", ".whl")):
                found.add(normal(name[0]))
                break  # what follows the first name may be prose
    return found


def test_nothing_tells_people_to_install_a_package_that_is_not_ours() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    kinds = (".md", ".py", ".sh", ".html", ".yml", ".yaml", ".txt")
    files = [ROOT / name for name in listed.stdout.splitlines() if name.endswith(kinds)]
    told = {name for file in files if file.is_file() for name in installed_names(file.read_text())}
    assert "topics" not in told, "`topics` on PyPI is somebody else's package; ours is topicsdb"
    assert normal(project()["name"]) in told
