"""Schedule endpoints (`docs/spec/http-api.md#sec-19-14`)."""

from __future__ import annotations

from functools import partial

from topics import limits
from topics.api.app import Handler, RequestCall, within_budget
from topics.engine.engine import Engine
from topics.errors import Forbidden
from topics.model.names import check_topic_name
from topics.model.schedules.schedule import check_schedule_name
from topics.model.schedules.schedule_answers import SchedulePage, ScheduleState
from topics.wire.incoming.request_head import int_param
from topics.wire.incoming.schedule_requests import decode_schedule
from topics.wire.page_tokens import decode_cursor, encode_cursor


class ScheduleEndpoints:
    def __init__(self, engine: Engine) -> None:
        self._schedules = engine.schedules
        self._owners = engine.state.schedules
        self.handlers: dict[str, Handler] = {
            "put_schedule": self.put_schedule,
            "get_schedule": self.get_schedule,
            "list_schedules": within_budget(self.list_schedules),
            "delete_schedule": self.delete_schedule,
            "run_schedule": self.run_schedule,
            "pause_schedule": self.pause_schedule,
            "resume_schedule": self.resume_schedule,
        }

    def put_schedule(self, call: RequestCall) -> None:
        request = call.take(decode_schedule)
        check_schedule_name(call.name)
        check_topic_name(request.topic)
        call.when(self._schedules.put(call.name, request.topic, request.rule()), partial(self._put, call))

    @staticmethod
    def _put(call: RequestCall, shown: ScheduleState) -> None:
        call.answer(shown, status=201 if shown.created else 200)

    def get_schedule(self, call: RequestCall) -> None:
        self._check_topic(call)
        call.answer(self._schedules.get(call.name))

    def list_schedules(self, call: RequestCall) -> None:
        query, key = call.query(), call.key
        schedules, more = self._schedules.page(
            prefix=query.get("prefix", ""),
            topic=query.get("topic"),
            after=decode_cursor(query.get("cursor")),
            page_size=int_param(query, "page_size", clamp=limits.PAGE_SIZE),
            visible=lambda *names: key is None or all(map(key.permits_name, names)),
        )
        cursor = encode_cursor(schedules[-1].schedule) if more else None
        call.answer(SchedulePage(schedules=schedules, next_cursor=cursor))

    def delete_schedule(self, call: RequestCall) -> None:
        self._check_topic(call)
        call.when(self._schedules.drop(call.name), call.answer)

    def run_schedule(self, call: RequestCall) -> None:
        self._check_topic(call)
        call.when(self._schedules.run(call.name), call.answer)

    def pause_schedule(self, call: RequestCall) -> None:
        self._check_topic(call)
        call.when(self._schedules.set_paused(call.name, True), call.answer)

    def resume_schedule(self, call: RequestCall) -> None:
        self._check_topic(call)
        call.when(self._schedules.set_paused(call.name, False), call.answer)

    def _check_topic(self, call: RequestCall) -> None:
        """A stored schedule is there only for a key that may see its topic, which the caller did not name."""
        topic = self._owners.get(call.name)
        if topic is not None and call.key is not None and not call.key.permits_name(topic.name):
            raise Forbidden("the key does not permit the topic of this schedule")
