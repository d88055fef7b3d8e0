"""Tails in many short runs: what a busy topic has after a while, a small one has here from the start."""

from __future__ import annotations

import pytest

from topics.core.slots import tail

SLOTS = 7


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "RUN_SLOTS_MAX", SLOTS)


@pytest.fixture
def long_runs(short_runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as they really are, for a test that counts them."""
    monkeypatch.setattr(tail, "RUN_SLOTS_MAX", 32_768)
