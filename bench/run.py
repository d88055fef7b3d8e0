"""Runs every `bench_*.py` under this folder, one after the other, each in a fresh process.

`run.py NAME ...` runs only those whose path contains one of the names. Benchmarks share no state and never run side by
side, so that figures compare; each prints its own table and says itself where its results are kept.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def found(names: list[str]) -> list[Path]:
    paths = sorted(HERE.rglob("bench_*.py"))
    return [path for path in paths if not names or any(name in str(path.relative_to(HERE)) for name in names)]


def main() -> int:
    failed = []
    for path in found(sys.argv[1:]):
        title = str(path.relative_to(HERE.parent))
        print(f"\n== {title}", flush=True)
        if subprocess.run([sys.executable, str(path)], cwd=HERE.parent).returncode:
            failed.append(title)
    for title in failed:
        print(f"failed: {title}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
