"""Cold segments in a real object store: read by executors themselves, in path and in url mode, and verified."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.served import Served
from tests.spark.test_url_reads import read_url, rows_in
from tests.spark.world import read_path
from tests.storage.tiers.s3_server import KEY, SECRET, S3Server

from topics.errors import ConfigError
from topics.spark.jobs.verify import check_segment, plan_verify
from topics.spark.logs import server_log

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    store = S3Server(tmp_path_factory.mktemp("s3"))
    try:
        store.start()
    except RuntimeError as error:
        pytest.skip(f"no S3 server can be started here: {error}")
    yield store
    store.stop()


@pytest.fixture(scope="module")
def cold(store: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Nearly five hundred records of which four hundred are in the store, some of them deleted there."""
    folder = tmp_path_factory.mktemp("cold")
    served = Served(folder, cold_dir=store.uri("cold"), hot_retain_segments="0", segment_max_events="100")
    served.write("c", *({"n": n} for n in range(430)), tag="t")
    deadline = time.monotonic() + 60
    while sum(segment["tier"] == "cold" for segment in served.segments("c")["segments"]) < 4:
        assert time.monotonic() < deadline, "the segments did not move"
        time.sleep(0.05)
    served.write("c", *({"n": n} for n in range(430, 470)), tag="u")
    served.delete("c", before_seq=51)
    yield served
    served.stop()


def test_path_mode_reads_the_store(cold: Served, store: S3Server) -> None:
    assert rows_in(read_path(cold.data_dir, "c", coldPath=store.uri("cold"))) == cold.rows("c")


def test_url_mode_reads_the_store_where_it_can(cold: Served, store: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = server_log.frames_between

    def watched(address: Any, task: Any, lo: int, hi: int) -> Any:
        asked.append(lo)
        return real(address, task, lo, hi)

    monkeypatch.setattr(server_log, "frames_between", watched)
    assert rows_in(read_url(cold, "c", coldPath=store.uri("cold"))) == cold.rows("c")
    assert all(lo > 400 for lo in asked)


def test_url_mode_finds_the_store_by_what_the_server_says_of_it(
    cold: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server names the store and how to reach it, the reader has the keys; without them it is told in one line."""
    asked: list[int] = []
    real = server_log.frames_between

    def watched(address: Any, task: Any, lo: int, hi: int) -> Any:
        asked.append(lo)
        return real(address, task, lo, hi)

    monkeypatch.setattr(server_log, "frames_between", watched)
    monkeypatch.setattr(server_log, "_warned", set())
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    server_log._is_cold_root.cache_clear()
    assert rows_in(read_url(cold, "c")) == cold.rows("c")
    assert all(lo > 400 for lo in asked)
    assert "cold store" not in caplog.text
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another one")
    server_log._is_cold_root.cache_clear()
    for _ in range(2):
        assert rows_in(read_url(cold, "c")) == cold.rows("c")
    assert any(lo < 400 for lo in asked)
    assert caplog.text.count("the driver cannot open the cold store s3://bench/cold:") == 1
    server_log._is_cold_root.cache_clear()


def test_a_cold_root_alone_is_a_table(cold: Served, store: S3Server) -> None:
    uri = store.uri("cold")
    with pytest.raises(ConfigError, match="it has recovered:") as caught:
        read_path(uri, "c")
    assert SECRET not in str(caught.value)
    name = str(caught.value).rpartition("it has ")[2]
    assert read_path(uri, name).column("seq").to_pylist()[-1] == 400


def test_a_store_that_cannot_be_read_is_told_without_its_keys(cold: Served, store: S3Server) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        read_path(store.uri("cold", secret="wr0ng-one"), "c")
    assert "wr0ng" not in str(caught.value)


def test_every_copy_is_verified(cold: Served, store: S3Server) -> None:
    plan = plan_verify(cold.data_dir, store.uri("cold"))
    checked = [check_segment(item) for item in plan.segments]
    assert {item.tier for item in plan.segments} >= {"cold"}
    assert plan.findings == []
    assert [finding for result in checked for finding in result.findings] == []
    assert sum(result.frames for result in checked if result.tier == "cold") == 400


def test_damage_in_the_store_is_found(store: S3Server, tmp_path: Path) -> None:
    served = Served(tmp_path, cold_dir=store.uri("damaged"), hot_retain_segments="0", segment_max_events="50")
    try:
        served.write("d", *range(60))
        deadline = time.monotonic() + 60
        while all(segment["tier"] == "hot" for segment in served.segments("d")["segments"]):
            assert time.monotonic() < deadline, "the segment did not move"
            time.sleep(0.05)
    finally:
        served.stop()
    from pyarrow.fs import FileSelector

    files = store.files()
    found = files.get_file_info(FileSelector("bench/damaged/topics", recursive=True))
    (data,) = [info.path for info in found if info.path.endswith(".data")]
    raw = bytearray(files.open_input_file(data).read())
    raw[200] ^= 4
    with files.open_output_stream(data) as out:
        out.write(bytes(raw))
    plan = plan_verify(served.data_dir, store.uri("damaged"))
    findings = [finding for item in plan.segments for finding in check_segment(item).findings]
    assert len(findings) == 1
    assert findings[0].tier == "cold"
    assert findings[0].file.startswith("s3://bench/damaged/topics/")
