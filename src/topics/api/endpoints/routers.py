"""Router endpoints (`docs/spec/http-api.md#sec-16`)."""

from __future__ import annotations

from functools import partial

import msgspec

from topics import limits
from topics.api.app import RequestCall
from topics.engine.engine import Engine
from topics.engine.routers.routers import RouterPutDone, RouterShown
from topics.model.names import check_router_name
from topics.model.router import DeleteRouterResult, RouterPage
from topics.wire.access.auth import check_router_seen, permits_router
from topics.wire.incoming.request_head import int_param
from topics.wire.incoming.requests import (
    decode_router,
)
from topics.wire.outgoing.replies import performance
from topics.wire.page_tokens import decode_cursor, encode_cursor


class RouterEndpoints:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # --- PUT ------------------------------------------------------------------------------------------------------

    def put_router(self, call: RequestCall) -> None:
        request = call.take(decode_router)
        check_router_name(call.name)
        definition = request.definition(call.name)
        call.when(self._engine.routers.put(definition), partial(self._put, call))

    @staticmethod
    def _put(call: RequestCall, done: RouterPutDone) -> None:
        shown = done.definition.to_json()
        body = {"router": shown.pop("router"), "created": done.created, **shown}
        call.reply(201 if done.created else 200, _with_performance(body, call))

    # --- GET ------------------------------------------------------------------------------------------------------

    def get_router(self, call: RequestCall) -> None:
        self._check_endpoints(call)
        call.when(self._engine.routers.get(call.name), partial(self._shown, call))

    @staticmethod
    def _shown(call: RequestCall, shown: RouterShown) -> None:
        body = {**shown.definition.to_json(), "forwarded_total": shown.forwarded_total}
        call.reply(200, _with_performance(body, call))

    def _check_endpoints(self, call: RequestCall) -> None:
        """A stored router is visible only to a key that may see both its topics."""
        router = self._engine.state.routers.get(call.name)
        if router is not None:
            check_router_seen(call.key, router.definition)

    def list_routers(self, call: RequestCall) -> None:
        query = call.query()
        routers, more = self._engine.routers.page(
            prefix=query.get("prefix", ""),
            source=query.get("source"),
            dest=query.get("dest"),
            after=decode_cursor(query.get("cursor")),
            page_size=int_param(query, "page_size", clamp=limits.PAGE_SIZE),
            visible=partial(permits_router, call.key),
        )
        cursor = encode_cursor(routers[-1].router) if more and routers else None
        call.answer(RouterPage(routers=routers, next_cursor=cursor))

    # --- DELETE ---------------------------------------------------------------------------------------------------

    def delete_router(self, call: RequestCall) -> None:
        self._check_endpoints(call)
        call.when(self._engine.routers.delete(call.name), partial(self._deleted, call))

    @staticmethod
    def _deleted(call: RequestCall, deleted: bool) -> None:
        call.answer(DeleteRouterResult(router=call.name, deleted=deleted))


def _with_performance(body: dict[str, object], call: RequestCall) -> bytes:
    return b'%b,"performance":%b}' % (msgspec.json.encode(body)[:-1], performance(call.elapsed_ms()))
