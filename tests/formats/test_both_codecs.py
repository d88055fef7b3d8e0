"""The native codecs give the bytes and columns of the plain ones, and refuse what those refuse."""

import os

import pytest
from tests.formats.codec_questions import QUESTIONS, Codec, ask

from topics.formats.codec import plain_log, plain_render, plain_segment

native_log = pytest.importorskip("topics.formats.codec.native_log", reason="the native codecs are not built")
native_render = pytest.importorskip("topics.formats.codec.native_render", reason="the native codecs are not built")
native_segment = pytest.importorskip("topics.formats.codec.native_segment", reason="the native codecs are not built")

PLAIN = Codec(plain_log, plain_segment, plain_render)
NATIVE = Codec(native_log, native_segment, native_render)
SEEDS = 2_000_000 if "SIM_SECONDS" in os.environ else 20_000


def test_both_answer_and_refuse_alike() -> None:
    told = set()
    for seed in range(SEEDS):
        wanted = ask(seed, PLAIN)
        assert ask(seed, NATIVE) == wanted, f"seed {seed}"
        told.add((wanted[0], wanted[1] == "refused"))  # type: ignore[index]
    assert {name for name, _ in told} == {question.__name__ for question in QUESTIONS}
    assert sum(refused for _, refused in told) >= 8, "hardly anything was refused"


def test_both_have_the_same_functions() -> None:
    for plain, native in zip(PLAIN, NATIVE, strict=True):
        offered = {name for name in dir(native) if not name.startswith("_") and callable(getattr(native, name))}
        assert offered <= set(dir(plain))
