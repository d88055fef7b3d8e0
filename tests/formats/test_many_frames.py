"""Long runs are encoded by columns: byte for byte what short runs of the same records are."""

from __future__ import annotations

from random import Random

import pytest

from topics.formats.wal.frame import encode_appends, encode_frame


@pytest.mark.parametrize("node", [None, b"", b"n1"])
@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize("count", [255, 256, 1000])
def test_a_long_run_is_made_of_the_frames_of_its_records(count: int, tagged: bool, node: bytes | None) -> None:
    rng = Random(count)
    datas = [b'{"d":"%b"}' % (b"x" * rng.randrange(300)) for _ in range(count)]
    tags = [rng.choice((None, b"", b"tag")) for _ in range(count)] if tagged else None
    made = encode_appends(topic_id=7, first_seq=2**33, ts=5, datas=datas, nodes=node, tags=tags, durable=True)
    frames = [
        encode_frame(
            1,
            topic_id=7,
            seq=2**33 + at,
            ts=5,
            node=node,
            tag=None if tags is None else tags[at],
            data=data,
            durable=True,
            more=at < count - 1,
        )
        for at, data in enumerate(datas)
    ]
    assert made.buffer == b"".join(frames)
    assert list(made.lengths) == list(map(len, frames))
    assert list(made.offsets) == [sum(map(len, frames[:at])) for at in range(count)]


@pytest.mark.parametrize("tagged", [False, True])
@pytest.mark.parametrize("runs", [[1], [3], [1, 1, 1], [1, 4, 2], [5, 1], [200, 1, 100], [1] * 300])
def test_writes_that_travel_together_are_the_runs_they_would_be_alone(runs: list[int], tagged: bool) -> None:
    count = sum(runs)
    datas = [b'{"d":%d}' % at for at in range(count)]
    tags = [None if at % 3 else b"tag" for at in range(count)] if tagged else None
    together = encode_appends(topic_id=7, first_seq=9, ts=5, datas=datas, tags=tags, durable=False, runs=runs)
    apart, at = b"", 0
    for run in runs:
        some = slice(at, at + run)
        own_tags = None if tags is None else tags[some]
        apart += encode_appends(
            topic_id=7, first_seq=9 + at, ts=5, datas=datas[some], tags=own_tags, durable=False
        ).buffer
        at += run
    assert together.buffer == apart
