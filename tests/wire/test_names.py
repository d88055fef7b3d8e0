"""Names in requests and answers are found by their type, so that no field can be forgotten."""

from __future__ import annotations

import inspect as python_inspect
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from topics import errors
from topics.errors import Internal, TopicsError
from topics.model.config import ConfigPatch, resolve_config
from topics.model.names import NAMES, TopicName
from topics.model.results import DeleteTopicResult, PutTopicResult, TopicPage, TopicSummary, WatchResult, WatchStart
from topics.wire import openapi
from topics.wire.access.visible_names import cut, error_seen, names_in
from topics.wire.incoming.requests import (
    PutRouterRequest,
    TopicStart,
    WatchRequest,
    WriteRequest,
)
from topics.wire.outgoing import ws_messages as ws

REQUESTS = (*openapi._REQUESTS, *get_args(ws.Command))

NO_NAMES = {
    "node", "tag", "idempotency_key", "lease_ids", "match", "filter", "type", "discard", "durability", "guarantee",
    "consistency", "from_seq", "unique", "key", "error",
    "position", "cursor", "owner", "to", "hold", "if_head", "if_tag_seq",
    "cron", "timezone", "traceparent", "text",
}  # fmt: skip
"""Texts of requests that name no topic. Whoever adds a field says so here, or gives it the type `TopicName`."""

NOT_TOLD = {
    "position",
    "next",
    "positions",
    "wid",
    "stream_url",
    "next_cursor",
    "token",
    "problem",
    "scopes",
    "prefixes",
    "lease_id",
    "tag",
    "node",
    "filter",
    "type",
    "guarantee",
}
"""The same for answers; `config` is made of requests."""


def texts_of(struct: type, seen: set[type] | None = None) -> Iterator[tuple[str, inspect.Type, bool]]:
    """Every text in a struct: the field it belongs to, its type, and whether it is known to be a name."""
    seen = set() if seen is None else seen
    if struct in seen:
        return
    seen.add(struct)
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        yield from _texts(field.name, field.type, seen)


def _texts(name: str, kind: inspect.Type, seen: set[type]) -> Iterator[tuple[str, inspect.Type, bool]]:
    match kind:
        case inspect.Metadata(extra=extra) if extra is not None and NAMES in extra:
            yield name, kind, True
        case inspect.Metadata(type=inner):
            yield from _texts(name, inner, seen)
        case inspect.StrType():
            yield name, kind, False
        case inspect.UnionType(types=types):
            for choice in types:
                yield from _texts(name, choice, seen)
        case inspect.CollectionType(item_type=item):
            yield from _texts(name, item, seen)
        case inspect.DictType(key_type=key, value_type=item):
            yield from _texts(name, key, seen)
            yield from _texts(name, item, seen)
        case inspect.StructType(cls=struct):
            yield from texts_of(struct, seen)


@pytest.mark.parametrize("struct", REQUESTS, ids=lambda struct: struct.__name__)
def test_every_text_of_a_request_is_a_name_by_its_type_or_known_to_be_none(struct: type) -> None:
    unknown = {name for name, _, is_name in texts_of(struct) if not is_name} - NO_NAMES
    assert not unknown, f"give {unknown} the type TopicName, or list it as no name"


@pytest.mark.parametrize("struct", openapi._RESULTS, ids=lambda struct: struct.__name__)
def test_every_text_of_an_answer_is_a_name_by_its_type_or_known_to_be_none(struct: type) -> None:
    unknown = {name for name, _, is_name in texts_of(struct) if not is_name} - NOT_TOLD - NO_NAMES - {"reason"}
    assert not unknown, f"give {unknown} the type TopicName, or list it as no name"


def test_the_walk_itself_finds_a_name_that_has_no_type() -> None:
    class Careless(msgspec.Struct):
        overflow: str | None = None
        mirror: list[TopicName] = []

    assert {(name, is_name) for name, _, is_name in texts_of(Careless)} == {("overflow", False), ("mirror", True)}


def test_names_are_found_at_any_depth() -> None:
    class Odd(msgspec.Struct):
        mirrors: list[PutRouterRequest]
        by_topic: dict[TopicName, ConfigPatch]

    odd = Odd([PutRouterRequest("a", "b")], {"c": ConfigPatch(dead_letter="d"), "e": ConfigPatch()})
    assert list(names_in(odd)) == ["a", "b", "c", "d", "e"]
    assert list(names_in(WriteRequest([], config=ConfigPatch(dead_letter="x")))) == ["x"]
    assert list(names_in(WatchRequest({"x": TopicStart(), "y": TopicStart()}))) == ["x", "y"]
    assert list(names_in(ws.Unsubscribe(topic="x", topics=["y"]))) == ["x", "y"]
    assert list(names_in(ws.Subscribe(topics={"y": TopicStart()}))) == ["y"]
    assert not list(names_in(WriteRequest([])))


def mine(name: str) -> bool:
    return name.startswith("eu.")


def test_an_answer_is_cut_and_says_where() -> None:
    put = PutTopicResult("eu.q", True, resolve_config(ConfigPatch(dead_letter="us.secret", ttl_ms=5)))
    seen, hidden = cut(put, mine)
    assert hidden == ["config.dead_letter"]
    assert seen.config == resolve_config(ConfigPatch(ttl_ms=5))
    assert cut(put, lambda _: True) == (put, [])
    dropped, hidden = cut(DeleteTopicResult("eu.q", True, ["eu.r", "us.r"]), mine)
    assert (dropped.routers_removed, hidden) == (["eu.r"], ["routers_removed"])
    start = WatchStart(0, 0, 1)
    watch, hidden = cut(WatchResult("w", "u", 1, {"eu.a": start, "us.a": start}), mine)
    assert (list(watch.topics), hidden) == (["eu.a"], ["topics"])
    page, hidden = cut(TopicPage([TopicSummary("us.x", 0, 1, 0, 0, False, 0)]), mine)
    assert (page.topics, hidden) == ([], ["topics"])


def test_what_cannot_be_left_out_is_not_answered() -> None:
    with pytest.raises(Internal):
        cut(DeleteTopicResult("us.q", True, []), mine)


# --- errors ----------------------------------------------------------------------------------------------------------

SENT = {
    "InvalidRequest.bad_dead_letter", "Forbidden.for_topic", "TopicNotFound", "RouterNotFound", "TopicNotEmpty",
    "NotAQueue", "CursorNotFound", "CursorFenced", "CursorForeign", "RecordNotFound.of",
    "ScheduleNotFound", "TopicExistsIncompatible.schedule_topic",
    "TopicFull", "TopicExistsIncompatible.type_change", "TopicExistsIncompatible.fan_in",
}  # fmt: skip
"""Errors about a topic or router that the caller has named itself, in the path or in the body."""
NO_TOPICS = {
    "Unreachable", "WalReadOnly", "CommitFailed", "Corruption", "ColdUnavailable", "Throttled.cap", "NotReady",
    "DataLoss", "WalFull.cap", "NotReady.refusing_writes",
}  # fmt: skip
"""Errors whose texts name something else (a file, a store, a limit, a cause), or that no server answers with."""
SECRET = "us.secret"


def _subclasses(root: type[TopicsError]) -> Iterator[type[TopicsError]]:
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from _subclasses(child)


def _ways_to_make() -> Iterator[tuple[str, Any]]:
    for child in _subclasses(TopicsError):
        if "__init__" in vars(child):
            yield child.__name__, child
        for name, member in vars(child).items():
            if isinstance(member, classmethod):
                yield f"{child.__name__}.{name}", getattr(child, name)


def _made(make: Any) -> TopicsError | None:
    """With the secret for every text; None if it takes none."""
    given: list[Any] = []
    named: dict[str, Any] = {}
    has_text = False
    for param in python_inspect.signature(make).parameters.values():
        kind = str(param.annotation)
        value: Any = 1
        if "Sequence" in kind:
            value = ["eu.a", SECRET, "eu.a"]
        elif param.name == "router":
            value = "eu.sent"
        elif "str" in kind or "Literal" in kind or "Cause" in kind:
            value = SECRET
        has_text |= value != 1
        if param.kind is param.KEYWORD_ONLY:
            named[param.name] = value
        else:
            given.append(value)
    error: TopicsError = make(*given, **named)
    return error if has_text else None


@pytest.mark.parametrize(("name", "make"), [pytest.param(name, make, id=name) for name, make in _ways_to_make()])
def test_an_error_names_what_was_sent_or_is_cut_to_what_may_be_seen(name: str, make: Any) -> None:
    error = _made(make)
    if error is None or name in SENT | NO_TOPICS:
        return
    seen = error_seen(error, mine)
    assert SECRET not in str(seen.envelope())
    assert SECRET not in str(seen)
    assert seen.code == error.code
    assert error.detail is None or (seen.detail is not None and seen.detail["hidden"])
    assert error_seen(error, lambda _: True) is error
