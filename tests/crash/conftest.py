"""Crash tests: the engine warns of every loss it announces, and here that is thousands of lines nobody reads."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)
