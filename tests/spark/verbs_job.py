"""Runs verbs of the command line one after the other, each in a fork of this process: python verbs_job.py < JSON

The input lists the arguments of each verb, and what it reads; the output has a line for each: status, stdout, stderr.
Names given in HIDDEN_MODULES cannot be imported, as if they were not installed.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from types import ModuleType
from typing import IO, Any

HIDDEN = frozenset(os.environ.get("HIDDEN_MODULES", "").split())


class WithoutHidden(importlib.machinery.PathFinder):
    """Finds what the path has, but for the hidden names."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return None if fullname.partition(".")[0] in HIDDEN else super().find_spec(fullname, path, target)


def run(arguments: list[str], given: str) -> dict[str, Any]:
    """One verb, as a process of its own would run it."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        stdin.write(given.encode())
        stdin.seek(0)
        pid = os.fork()
        if not pid:
            for fd, file in enumerate((stdin, out, err)):
                os.dup2(file.fileno(), fd)
            _end(arguments)
        _, status = os.waitpid(pid, 0)
        return {"status": os.waitstatus_to_exitcode(status), "stdout": _text(out), "stderr": _text(err)}


def _end(arguments: list[str]) -> None:
    """Never returns."""
    import traceback

    status = 99
    try:
        sys.argv = ["topics", *arguments]
        cli.main()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


if __name__ == "__main__":
    sys.meta_path[:] = [WithoutHidden if each is importlib.machinery.PathFinder else each for each in sys.meta_path]
    import topics.client  # noqa: F401  # most verbs use it: once is enough
    from topics import cli

    for arguments, given in json.load(sys.stdin):
        print(json.dumps(run(arguments, given)), flush=True)
