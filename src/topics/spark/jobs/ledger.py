"""Ledger: what a job has finished, one JSON line each, so that a second start goes on instead of starting over.

A ledger belongs to one set of inputs (`title`): another one under the same name is begun anew. Lines are appended and
synced as work is done; a torn last line is work to do again. A job that may begin anew removes it when it is through.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from topics.spark.logs.read_files import local_path


class Ledger:
    """Finished work by key."""

    def __init__(self, path: Path, title: str) -> None:
        self._path = path
        self._title = title
        self._done: dict[str, Any] = {}
        self._load()

    @property
    def resumed(self) -> bool:
        """Whether an earlier run left something."""
        return bool(self._done)

    def get(self, key: str) -> Any:
        return self._done.get(key)

    def __contains__(self, key: str) -> bool:
        return key in self._done

    def record(self, key: str, value: Any = True) -> None:
        self.record_all({key: value})

    def record_all(self, entries: dict[str, Any]) -> None:
        self._done.update(entries)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not self._path.exists()
        with self._path.open("a", encoding="utf-8") as file:
            if is_new:
                file.write(json.dumps({"ledger": self._title}) + "\n")
            for key, value in entries.items():
                file.write(json.dumps({"key": key, "value": value}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def finish(self) -> None:
        """The job is through: the next run begins anew."""
        self._path.unlink(missing_ok=True)

    def _load(self) -> None:
        if not self._path.exists():
            return
        text = self._path.read_text(encoding="utf-8", errors="replace")
        parsed = [entry for line in text.splitlines() if (entry := _parsed(line)) is not None]
        if not parsed or parsed[0].get("ledger") != self._title:
            self._path.unlink()
            return
        self._done = {entry["key"]: entry["value"] for entry in parsed[1:] if "key" in entry}
        if not text.endswith("\n"):  # a torn line must not take the next one with it
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n")


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def place_of(source: str) -> str:
    """A source by a name that means the same in every folder: two of one relative name are two."""
    local = Path(local_path(source))
    return str(local.resolve()) if source and local.exists() else source


def ledger_path(job: str, *inputs: str, folder: str | None = None) -> Path:
    """Where the ledger of a job over these inputs lies, unless the user names a folder: the user's state directory."""
    name = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]
    base = Path(folder) if folder else Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return (base if folder else base / "topics") / f"{job}-{name}.jsonl"
