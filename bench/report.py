"""Report: the lines of one benchmark, printed as they come and kept as text under `bench/results/`.

A figure stands beside its goal, and a missed goal says so. The head names what the figures depend on: processors,
interpreter, package version. Used by every `bench_*.py`.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

from topics import __version__

RESULTS = Path(__file__).resolve().parent / "results"


class Report:
    def __init__(self, name: str, title: str) -> None:
        self._path = RESULTS / f"{name}.txt"
        self._lines: list[str] = []
        self.missed = 0
        machine = f"{os.cpu_count()} processors, {platform.machine()}"
        self.line(title)
        self.line(f"topics {__version__}, Python {platform.python_version()}, {machine}")
        self.line()

    def line(self, text: str = "") -> None:
        print(text, flush=True)
        self._lines.append(text.rstrip())

    def figure(self, name: str, value: float, unit: str, *, at_least: float = 0.0, at_most: float = 0.0) -> None:
        """One measured value. `at_least` or `at_most` is its goal, if it has one."""
        verdict = ""
        if at_least or at_most:
            met = value >= at_least if at_least else value <= at_most
            self.missed += not met
            verdict = f"goal {'>=' if at_least else '<='} {shown(at_least or at_most)}   {'ok' if met else 'MISSED'}"
        self.line(f"{name:50} {shown(value):>12} {unit:12} {verdict}")

    def save(self) -> None:
        RESULTS.mkdir(exist_ok=True)
        self._path.write_text("\n".join(self._lines) + "\n", encoding="utf-8")


def shown(value: float) -> str:
    """Few digits where more would not repeat themselves."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}" if value >= 1 else f"{value:.3f}"
