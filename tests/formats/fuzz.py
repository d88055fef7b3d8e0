"""python -m tests.formats.fuzz DIR SECONDS: asks the native codecs in DIR, built with a sanitizer, for so long.

A seed that goes wrong is the last one that was said. `scripts/fuzz-codecs.sh` builds and starts it."""

from __future__ import annotations

import sys
import time
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from tests.formats.codec_questions import Codec, ask

SAY_EVERY = 1000


def load(directory: Path, name: str) -> ModuleType:
    full = f"topics.formats.codec.{name}"
    path = directory / f"{name}{EXTENSION_SUFFIXES[0]}"
    spec = spec_from_loader(full, ExtensionFileLoader(full, str(path)))
    assert spec is not None
    module = module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


def main(directory: Path, seconds: float) -> None:
    codec = Codec(*(load(directory, f"native_{name}") for name in Codec._fields))
    end = time.monotonic() + seconds
    seed = first = time.time_ns()
    while time.monotonic() < end:
        print(f"seeds from {seed}", flush=True, end="\r")
        for _ in range(SAY_EVERY):
            ask(seed, codec)
            seed += 1
    print(f"{seed - first:,} questions to the native codecs under the sanitizer, from seed {first}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
