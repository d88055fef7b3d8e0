"""The error tree: codes, statuses and details of the contract, the same through every door."""

import pickle

import pytest

from topics import errors
from topics.errors import (
    BatchTooLarge,
    ColdUnavailable,
    CommitFailed,
    ConfigError,
    Corruption,
    CorruptSegment,
    DataLoss,
    DiskFull,
    Forbidden,
    Internal,
    InvalidRequest,
    MethodNotAllowed,
    NotAcceptable,
    NotAQueue,
    NotFound,
    NotReady,
    PayloadTooLarge,
    RecordTooLarge,
    RotationFailed,
    RouterCycle,
    RouterNotFound,
    ShuttingDown,
    StorageIo,
    Throttled,
    TopicExistsIncompatible,
    TopicFull,
    TopicNotEmpty,
    TopicNotFound,
    TopicsError,
    Unauthorized,
    UnsupportedMediaType,
    WalFull,
    WalReadOnly,
)
from topics.wire.outgoing.replies import error_from_wire

# One row for each row of the table in `docs/spec/http-api.md#sec-5-2`.
CONTRACT: list[tuple[TopicsError, int, str, dict[str, object] | None]] = [
    (InvalidRequest("bad"), 400, "invalid_request", None),
    (InvalidRequest.bad_dead_letter("a b"), 400, "invalid_request", {"dead_letter": "a b"}),
    (BatchTooLarge.of_records(10_001, max=10_000), 400, "batch_too_large", None),
    (BatchTooLarge.of_seqs(1001, max=1000), 400, "batch_too_large", {"seqs": 1001, "max": 1000}),
    (RecordTooLarge("too large"), 400, "record_too_large", None),
    (Unauthorized(), 401, "unauthorized", None),
    (Forbidden(), 403, "forbidden", None),
    (Forbidden.for_topic("a"), 403, "forbidden", {"topic": "a"}),
    (TopicNotFound("a"), 404, "topic_not_found", {"topic": "a"}),
    (RouterNotFound("a->b"), 404, "router_not_found", {"router": "a->b"}),
    (NotFound(), 404, "not_found", None),
    (MethodNotAllowed(), 405, "method_not_allowed", None),
    (NotAcceptable(), 406, "not_acceptable", None),
    (RouterCycle(["c", "a", "c"]), 409, "router_cycle", {"cycle": ["c", "a", "c"]}),
    (
        TopicExistsIncompatible.type_change("a", existing_type="queue", requested_type="log"),
        409,
        "topic_exists_incompatible",
        {"topic": "a", "existing_type": "queue", "requested_type": "log"},
    ),
    (
        TopicExistsIncompatible.fan_in("b"),
        409,
        "topic_exists_incompatible",
        {"topic": "b", "reason": "router_dest_fan_in"},
    ),
    (
        TopicExistsIncompatible.repoint("r", existing_source="a", existing_dest="b"),
        409,
        "topic_exists_incompatible",
        {"router": "r", "reason": "router_repoint_forbidden", "existing_source": "a", "existing_dest": "b"},
    ),
    (TopicNotEmpty("a", count=3), 409, "topic_not_empty", {"topic": "a", "count": 3}),
    (NotAQueue("a"), 409, "not_a_queue", {"topic": "a"}),
    (PayloadTooLarge(64), 413, "payload_too_large", None),
    (UnsupportedMediaType(), 415, "unsupported_media_type", None),
    (
        TopicFull("a", cap_records=5, cap_bytes=0, head_seq=9, earliest_seq=5),
        422,
        "topic_full",
        {"topic": "a", "cap_records": 5, "cap_bytes": 0, "head_seq": 9, "earliest_seq": 5},
    ),
    (Throttled.cap("max_topics", max=2), 429, "throttled", {"limit": "max_topics", "max": 2}),
    (Throttled.shed(1000), 429, "throttled", {"retry_after_ms": 1000}),
    (WalFull(), 429, "throttled", None),
    (Internal(), 500, "internal", None),
    (NotReady(0.25), 503, "not_ready", {"replay_progress": 0.25}),
    (NotReady.refusing_writes(["a"]), 503, "not_ready", {"replay_progress": 1.0, "problems": ["a"]}),
    (DiskFull(), 503, "disk_full", None),
    (ShuttingDown(), 503, "shutting_down", None),
]
IDS = [f"{status}-{code}-{type(error).__name__}" for error, status, code, _ in CONTRACT]


def every_class(root: type[TopicsError] = TopicsError) -> list[type[TopicsError]]:
    """Of the tree itself; parts may have private kinds of their own, which other tests of this process import."""
    below = [child for child in root.__subclasses__() if child.__module__ == errors.__name__]
    return [root, *(found for child in below for found in every_class(child))]


@pytest.mark.parametrize(("error", "status", "code", "detail"), CONTRACT, ids=IDS)
def test_each_row_of_the_contract_has_its_status_code_and_detail(
    error: TopicsError, status: int, code: str, detail: dict[str, object] | None
) -> None:
    assert (error.status, error.code, error.detail) == (status, code, detail)


@pytest.mark.parametrize("error", [row[0] for row in CONTRACT], ids=IDS)
def test_an_envelope_has_a_message_and_leaves_detail_out_when_there_is_none(error: TopicsError) -> None:
    body = error.envelope()["error"]
    assert body["message"]
    assert set(body) == {"code", "message"} | ({"detail"} if error.detail is not None else set())


@pytest.mark.parametrize("error", [row[0] for row in CONTRACT], ids=IDS)
def test_only_429_and_503_say_when_to_come_back(error: TopicsError) -> None:
    assert error.retry_after_s == (1 if error.status in (429, 503) else None)


@pytest.mark.parametrize(
    ("error", "reported_as"),
    [
        (WalFull(), Throttled),
        (WalReadOnly("sync"), Internal),
        (CommitFailed("unknown"), Internal),
        (CorruptSegment("a", seq=3, segment="s"), Internal),
        (Corruption(file="wal", offset=9, reason="xxh3"), Internal),
        (StorageIo("read failed"), Internal),
        (ColdUnavailable("s3://b", reason="timeout"), NotReady),
        (RotationFailed(), NotReady),
    ],
)
def test_a_storage_error_is_caught_as_the_error_a_client_would_see(
    error: TopicsError, reported_as: type[TopicsError]
) -> None:
    assert isinstance(error, reported_as)
    assert (error.code, error.status) == (reported_as.code, reported_as.status)


def test_no_internal_error_shows_a_detail_on_the_wire() -> None:
    assert "detail" not in CorruptSegment("a", seq=3, segment="s").envelope()["error"]


def test_only_what_may_succeed_later_is_retryable() -> None:
    retryable = {cls.__name__ for cls in every_class() if cls.retryable}
    assert retryable == {
        "RotationFailed",
        "TopicFull",
        "Throttled",
        "WalFull",
        "StorageIo",
        "NotReady",
        "ColdUnavailable",
        "DiskFull",
        "ShuttingDown",
        "Unreachable",
    }


def test_only_a_wrong_setting_exits_with_two() -> None:
    assert {cls for cls in every_class() if cls.exit_status == 2} == {ConfigError}


def test_the_tree_at_the_top_of_the_module_names_every_class() -> None:
    drawn = errors.__doc__ or ""
    missing = [cls.__name__ for cls in every_class() if cls.__name__ not in drawn]
    assert missing == []


@pytest.mark.parametrize(("error", "status", "code", "detail"), CONTRACT, ids=IDS)
def test_what_a_server_reports_comes_back_as_the_same_kind(
    error: TopicsError, status: int, code: str, detail: dict[str, object] | None
) -> None:
    back = error_from_wire(code=code, status=status, message="said the server", detail=detail)
    assert isinstance(error, type(back))
    assert (back.code, back.status, back.detail, str(back)) == (code, status, detail, "said the server")


def test_a_code_we_do_not_know_keeps_its_code_and_status() -> None:
    back = error_from_wire(code="teapot", status=503, message="short and stout")
    assert (type(back), back.code, back.status, back.retryable, back.retry_after_s) == (
        TopicsError,
        "teapot",
        503,
        True,
        1,
    )


@pytest.mark.parametrize(
    "error",
    [row[0] for row in CONTRACT]
    + [DataLoss(topic="a", gap_from=1, gap_to=7, reason="cap"), WalReadOnly("no_space"), ConfigError("no")],
)
def test_an_error_survives_pickling_with_everything_it_carries(error: TopicsError) -> None:
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert back.__dict__ == error.__dict__
    assert str(back) == str(error)
