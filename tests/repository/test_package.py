"""The public names of the package, and that they cost nothing until used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import topics
from topics.cli import COMMANDS


def test_every_public_name_can_be_had() -> None:
    assert all(getattr(topics, name) is not None for name in topics.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        topics.nothing_like_it  # noqa: B018


def test_importing_the_package_loads_none_of_its_parts() -> None:
    program = "import sys, topics; print([m for m in sys.modules if m.startswith('topics.')])"
    environ = os.environ | {"PYTHONPATH": str(Path(topics.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("address", [address for address, _ in COMMANDS.values()], ids=list(COMMANDS))
def test_every_command_in_the_table_exists(address: str) -> None:
    module, attribute = address.split(":")
    assert hasattr(__import__(module, fromlist=[attribute]), attribute)
