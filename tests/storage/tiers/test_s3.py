"""The object store against a real S3 server: torn uploads, listing, ranges, deletes, wrong keys, gone and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.storage.tiers.s3_server import BUCKET, S3Server

import topics
from topics.errors import ColdStoreMismatch, ColdUnavailable
from topics.model.paging import Gap
from topics.model.results import Record
from topics.storage.tiers.object_store import ObjectRoot, open_object_root
from topics.storage.tiers.stores import NoSuchObject, RangeOutOfBounds

pytestmark = pytest.mark.timeout(300)

SMALL: dict[str, Any] = {
    "wal_shards": 1,
    "segment_max_events": 50,
    "hot_retain_segments": 0,
    "relocate_interval_ms": 50,
    "checkpoint_interval_ms": 50,
    "recent_cache_bytes": 1,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"))
    try:
        server.start()
    except RuntimeError as error:
        pytest.skip(f"no S3 server can be started here: {error}")
    yield server
    server.stop()


@pytest.fixture
def root(server: S3Server, request: pytest.FixtureRequest) -> ObjectRoot:
    return open_object_root(server.uri(f"stores/{abs(hash(request.node.name))}"))


def until(condition: Callable[[], bool], what: str, *, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in {seconds} s"
        time.sleep(0.05)


def n_of(record: Record | Gap) -> int:
    assert isinstance(record, Record)
    return int(record.value["n"])


# --- the contract of a store ------------------------------------------------------------------------------------------


def test_ranges_are_exact_or_refused(root: ObjectRoot) -> None:
    store = root.store(1)
    data = bytes(range(256)) * 40_000
    store.put(7, data, b"index")
    assert store.len(7, "data") == len(data)
    assert store.read_range(7, "data", 5_000_000, 300) == data[5_000_000:5_000_300]
    assert store.read_range(7, "idx", 0, 5) == b"index"
    with pytest.raises(RangeOutOfBounds):
        store.read_range(7, "data", len(data) - 1, 2)
    with pytest.raises(NoSuchObject):
        store.read_range(8, "data", 0, 1)
    with pytest.raises(NoSuchObject):
        store.len(8, "idx")
    assert (store.exists(7, "data"), store.exists(8, "data")) == (True, False)


def test_a_put_replaces_and_a_delete_of_nothing_is_success(root: ObjectRoot) -> None:
    store = root.store(1)
    store.put(1, b"old", b"o")
    store.put(1, b"newer", b"n")
    assert store.read_range(1, "data", 0, 5) == b"newer"
    store.delete(1)
    store.delete(1)
    assert store.list_any() == []


def test_listing_tells_whole_segments_from_parts(root: ObjectRoot, server: S3Server) -> None:
    store = root.store(10)
    for first_seq in (10**16, 12, 1):
        store.put(first_seq, b"d", b"i")
    path = root.uri(10).removeprefix("s3://").partition("?")[0]
    server.files().delete_file(f"{path}/seg-0000000000000012.data")
    with server.files().open_output_stream(f"{path}/notes.txt") as stream:
        stream.write(b"not ours")
    assert store.list() == [1, 10**16]
    assert store.list_any() == [1, 12, 10**16]
    assert root.topic_ids() == [10]
    root.remove_topic(10)
    assert store.list_any() == []


def test_an_upload_that_was_not_finished_is_no_object(root: ObjectRoot, server: S3Server) -> None:
    store = root.store(1)
    store.put(1, b"whole", b"i")
    path = root.uri(1).removeprefix("s3://").partition("?")[0]
    stream = server.files().open_output_stream(f"{path}/seg-0000000000000001.data")
    stream.write(b"x" * (12 << 20))
    stream.flush()
    assert store.read_range(1, "data", 0, 5) == b"whole"
    assert store.len(1, "data") == 5


def test_wrong_keys_are_an_error_and_never_absence(server: S3Server) -> None:
    wrong = open_object_root(server.uri("stores/keys", secret="wrong"))
    with pytest.raises(OSError, match="ACCESS_DENIED"):
        wrong.read_owner()
    with pytest.raises(OSError):
        wrong.store(1).list()
    with pytest.raises(OSError):
        wrong.store(1).put(1, b"d", b"i")


def test_a_label_shows_no_secret(server: S3Server) -> None:
    root = open_object_root(server.uri("a/b"))
    assert root.label == f"s3://{BUCKET}/a/b"


# --- a whole engine ---------------------------------------------------------------------------------------------------


def test_history_lies_in_s3_and_survives_restarts_deletes_and_a_server_that_goes_and_comes(
    server: S3Server, tmp_path: Path
) -> None:
    uri = server.uri("engine")
    with topics.open(str(tmp_path / "d"), cold_dir=uri, **SMALL) as db:
        topic = db.topic("t")
        topic.append_many([{"n": n} for n in range(200)])
        sealed = db._kernel.engine.state.topic("t").sealed
        until(lambda: len(sealed) == 4 and all(s.view.tier == "cold" for s in sealed), "the move")
        assert [n_of(record) for record in topic.read()] == list(range(200))
    hot = [path.name for path in (tmp_path / "d" / "topics").rglob("seg-*.data")]
    assert hot == []
    with topics.open(str(tmp_path / "d"), cold_dir=uri, **SMALL) as db:
        topic = db.topic("t")
        topic.delete(before_seq=101)
        assert [n_of(record) for record in topic.read()] == list(range(100, 200))
        store = open_object_root(uri).store(1)
        until(lambda: store.list_any() == [101, 151], "the drop")
    server.stop()
    with topics.open(str(tmp_path / "d"), cold_dir=uri, **SMALL) as db:
        topic = db.topic("t")
        with pytest.raises(ColdUnavailable, match=f"s3://{BUCKET}/engine"):
            list(topic.read(after=100))
        topic.append_many([{"n": n} for n in range(200, 250)])
        assert [n_of(record) for record in topic.read(after=200)] == list(range(200, 250))
        server.start()
        sealed = db._kernel.engine.state.topic("t").sealed
        until(lambda: all(s.view.tier == "cold" for s in sealed), "moving again", seconds=90)
        assert [n_of(record) for record in topic.read(after=100)] == list(range(100, 250))


def test_a_first_use_with_wrong_keys_is_refused_with_a_sentence(server: S3Server, tmp_path: Path) -> None:
    with pytest.raises(ColdStoreMismatch, match=f"the cold store s3://{BUCKET}/fresh cannot be used"):
        topics.open(str(tmp_path / "d"), cold_dir=server.uri("fresh", secret="wrong"))


def test_two_directories_cannot_share_a_prefix(server: S3Server, tmp_path: Path) -> None:
    uri = server.uri("shared")
    with topics.open(str(tmp_path / "a"), cold_dir=uri, **SMALL):
        until(lambda: open_object_root(uri).read_owner() is not None, "the claim")
    with pytest.raises(ColdStoreMismatch, match="another data directory"):
        topics.open(str(tmp_path / "b"), cold_dir=uri, **SMALL)
