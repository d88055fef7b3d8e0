"""Topic endpoints: create, state, list, drop (`docs/spec/http-api.md#sec-12`)."""

from __future__ import annotations

from functools import partial

from topics import limits
from topics.api.app import RequestCall
from topics.engine.engine import Engine
from topics.engine.lifecycle import Dropped
from topics.model.config import resolve_config
from topics.model.names import check_topic_name
from topics.model.results import DeleteTopicResult, PutTopicResult, TopicPage, TopicState, TopicSummary
from topics.wire.access.auth import permits_router
from topics.wire.incoming.request_head import bool_param, int_param
from topics.wire.incoming.requests import decode_config
from topics.wire.page_tokens import decode_cursor, encode_cursor


class TopicEndpoints:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # --- PUT ------------------------------------------------------------------------------------------------------

    def put_topic(self, call: RequestCall) -> None:
        patch = call.take(decode_config)
        check_topic_name(call.name)
        call.when(self._engine.put_topic(call.name, resolve_config(patch)), partial(self._put, call))

    @staticmethod
    def _put(call: RequestCall, result: PutTopicResult) -> None:
        call.answer(result, status=201 if result.created else 200)

    # --- GET ------------------------------------------------------------------------------------------------------

    def get_topic(self, call: RequestCall) -> None:
        touch = bool_param(call.query(), "touch", default=True)
        call.when(self._engine.topic_state(call.name, touch=touch), partial(self._state, call))

    @staticmethod
    def _state(call: RequestCall, state: TopicState) -> None:
        call.answer(state)

    def list_topics(self, call: RequestCall) -> None:
        query, key = call.query(), call.key
        page = self._engine.page_of_topics(
            prefix=query.get("prefix", ""),
            after=decode_cursor(query.get("cursor")),
            page_size=int_param(query, "page_size", clamp=limits.PAGE_SIZE),
            touch=bool_param(query, "touch", default=False),
            visible=(lambda _: True) if key is None else key.permits_name,
        )
        call.when(page, partial(self._page, call))

    @staticmethod
    def _page(call: RequestCall, page: tuple[list[TopicSummary], str | None]) -> None:
        topics, last = page
        cursor = None if last is None else encode_cursor(last)
        call.answer(TopicPage(topics=topics, next_cursor=cursor))

    # --- DELETE ---------------------------------------------------------------------------------------------------

    def delete_topic(self, call: RequestCall) -> None:
        if_empty = bool_param(call.query(), "if_empty", default=False)
        call.when(self._engine.drop_topic(call.name, if_empty=if_empty), partial(self._dropped, call))

    @staticmethod
    def _dropped(call: RequestCall, dropped: Dropped) -> None:
        removed = dropped.routers_removed
        seen = sorted(router.name for router in removed if permits_router(call.key, router))
        result = DeleteTopicResult(topic=call.name, deleted=dropped.deleted, routers_removed=seen)
        call.answer(result, hidden=() if len(seen) == len(removed) else ("routers_removed",))
