"""Builds the native codecs (`src/topics/formats/codec`) where that is possible; everything else is in pyproject.toml.

Without Cython, a C compiler, Python's headers or `xxhash.h`, or on a big-endian machine, the package is built without
them and runs on the plain ones. `TOPICS_SANITIZE=address` builds what the fuzz target of `make sim` runs.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

CODEC = Path("src/topics/formats/codec")


def header() -> Path | None:
    """The directory of `xxhash.h`: pyarrow's wheels carry it, and systems have it as libxxhash-dev."""
    places = [Path("/usr/local/include"), Path("/usr/include")]
    try:
        import pyarrow

        places.insert(0, Path(pyarrow.get_include()) / "arrow" / "vendored" / "xxhash")
    except ImportError:
        pass
    return next((place for place in places if (place / "xxhash.h").exists()), None)


def extensions() -> list[Extension]:
    try:
        from Cython.Build import cythonize
    except ImportError:
        return without("Cython is not installed")
    place = header()
    if place is None:
        return without("xxhash.h was found neither with pyarrow nor in the system (libxxhash-dev)")
    if sys.byteorder != "little":
        return without("this machine is big-endian")
    sanitize = os.environ.get("TOPICS_SANITIZE")
    flags = [f"-fsanitize={sanitize}", "-O1", "-g"] if sanitize else ["-O3", "-g0"]
    modules = [
        Extension(
            ".".join((*CODEC.parts[1:], path.stem)),
            [str(path)],
            include_dirs=[str(place)],
            define_macros=[("XXH_INLINE_ALL", None)],
            extra_compile_args=flags,
            extra_link_args=flags[:1] if sanitize else [],
            optional=True,
        )
        for path in sorted(CODEC.glob("*.pyx"))
    ]
    made: list[Extension] = cythonize(modules, build_dir="build/cython", include_path=["src"], quiet=True)
    return made


def without(reason: str) -> list[Extension]:
    print(f"topics is built without its native codecs: {reason}", file=sys.stderr)
    return []


setup(ext_modules=extensions())
