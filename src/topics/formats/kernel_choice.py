"""Which codecs run: the native ones where they were built, or the plain ones. Chosen once, at the first import, without
loading either, so that `topics --version` can say it."""

from __future__ import annotations

import os
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

from topics.config.environment import KERNEL_VARIABLE
from topics.errors import ConfigError

CODEC: Final = Path(__file__).parent / "codec"
NATIVE: Final = ("native_log", "native_render", "native_segment")


def _choose() -> str:
    asked = os.environ.get(KERNEL_VARIABLE, "")
    if asked not in ("", "native", "pure"):
        raise ConfigError(f"{KERNEL_VARIABLE}: {asked!r} is not allowed; it takes native or pure")
    is_built = all(PathFinder.find_spec(name, [str(CODEC)]) for name in NATIVE)
    if asked == "native" and not is_built:
        raise ConfigError(f"{KERNEL_VARIABLE} is native, but the native codecs are not built; `make setup` builds them")
    return asked or ("native" if is_built else "pure")


KERNEL: Final = _choose()
"""`native` or `pure`."""
