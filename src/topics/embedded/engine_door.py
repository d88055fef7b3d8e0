"""EngineDoor: the verbs carried out by the engine in this process.

Each route of a verb has one function here, which runs a command of the engine and shows its answer as users see it.
Nothing here suspends: whoever calls waits on the engine's own lock and files. `afollow` is the one exception
(`engine_follow`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from topics import limits
from topics.client import routes
from topics.client.arrow_pages import TablePage
from topics.client.readers import Reading, Stretches
from topics.client.routes import (
    Condition,
    DropQuery,
    LatestQuery,
    ListQuery,
    Route,
    ScheduleQuery,
    StateQuery,
)
from topics.embedded import queue_commands as _queue_commands  # noqa: F401 - puts its commands into the table
from topics.embedded.commands import COMMANDS, carries_out
from topics.embedded.engine_follow import Begin, awaited, follow_engine, poll_answer, read_request
from topics.embedded.stored_tables import table_of
from topics.embedded.views import latest_view, read_view
from topics.engine.reading.latest import LatestRequest
from topics.engine.reading.reads import ReadDone
from topics.engine.reading.starts import ReadStart
from topics.engine.ticket import resolved
from topics.model.config import TopicConfig, patch_from, resolve_config
from topics.model.names import check_router_name, check_topic_name
from topics.model.paging import Gaps
from topics.model.position import position_of, token
from topics.model.record import build_batch, build_plain_batch
from topics.model.results import (
    AppendResult,
    CursorDropped,
    CursorPage,
    CursorState,
    DeleteResult,
    EnteredJobs,
    LatestResult,
    ReadResult,
    Record,
    TopicPage,
    TopicState,
)
from topics.model.router import RouterDef, RouterPage, RouterState
from topics.model.schedules.schedule_answers import ScheduleDropped, SchedulePage, ScheduleRun, ScheduleState
from topics.model.values import plain_texts, records_of
from topics.wire.incoming.cursor_requests import CommitRequest, PutCursorRequest
from topics.wire.incoming.requests import (
    DeleteRequest,
    DiffRequest,
    PutRouterRequest,
    TableRequest,
    expecting,
    tag_match,
    tag_prefix,
)
from topics.wire.incoming.schedule_requests import PutScheduleRequest

if TYPE_CHECKING:
    from topics.embedded.database import Database

Q = TypeVar("Q")
T = TypeVar("T")

_BETWEEN = "\0"  # of the parts of a page's cursor; in no name


class EngineDoor:
    def __init__(self, database: Database) -> None:
        self._db = database
        self.compared: set[tuple[str, bytes]] = set()

    async def run(self, route: Route[Q, T], name: str, request: Q, part: str = "") -> T:
        answer: T = COMMANDS[route](self._db, name, request, *((part,) if part else ()))
        return answer

    async def append(
        self,
        topic: str,
        values: Sequence[Any],
        *,
        node: str | None,
        key: str | None,
        config: bytes | None,
        condition: Condition | None,
    ) -> AppendResult:
        texts = plain_texts(values)
        if texts is None:
            batch = build_batch(records_of(values), default_node=node, idempotency_key=key)
        else:
            batch = build_plain_batch(texts, default_node=node, idempotency_key=key)
        if condition is not None:
            batch = expecting(batch, condition.if_head, condition.if_tag_seq)
        first = None if config is None else _config_from(config)
        done = self._db.call(lambda engine: engine.write(topic, batch, config=first))
        return AppendResult(
            topic=topic,
            first_seq=done.first_seq,
            last_seq=done.last_seq,
            head_seq=done.head,
            count=done.count,
            created=done.created,
            deduped=done.deduped,
            position=token(done.last_seq, done.epoch),
            **_entered(done.entered),
        )

    def follow(self, readings: Mapping[str, Reading], *, gaps: Gaps) -> Stretches:
        async def blocked(begin: Begin) -> None:
            self._db.call(begin)

        return follow_engine(self._db, readings, gaps, blocked)

    def afollow(self, readings: Mapping[str, Reading], *, gaps: Gaps) -> Stretches:
        """`follow` for coroutines: waiting does not hold the event loop."""
        return follow_engine(self._db, readings, gaps, lambda begin: awaited(self._db, begin))


def _entered(jobs: EnteredJobs | None) -> dict[str, list[int]]:
    return {} if jobs is None else {"standing": jobs.seqs, "kept": jobs.kept, "replaced": jobs.replaced}


@lru_cache(1024)
def _config_from(text: bytes) -> TopicConfig:
    return resolve_config(patch_from(msgspec.json.decode(text)))


# --- commands: one for each route ------------------------------------------------------------------------------------


@carries_out(routes.DIFF)
def _diff(db: Database, topic: str, asked: DiffRequest) -> ReadResult:
    return read_view(topic, _read(db, topic, asked))


@carries_out(routes.TABLE)
def _table(db: Database, topic: str, asked: TableRequest) -> TablePage:
    done = _read(db, topic, asked)
    return TablePage(table_of(done.outcome.runs, asked.columns), read_view(topic, done))


def _read(db: Database, topic: str, asked: DiffRequest) -> ReadDone:
    start = position_of(asked.from_seq)
    if asked.from_ts is not None or asked.cursor is not None:
        elsewhere = ReadStart(from_ts=asked.from_ts, cursor=asked.cursor)
        start = db.call(lambda engine: engine.starts.find(engine.state.topic(topic), elsewhere))
    request = read_request(
        start, limit=asked.limit, max_bytes=asked.max_batch_bytes, nodes=asked.node, tag=tag_match(asked.tag)
    )
    if not asked.wait_ms:
        return db.call(lambda engine: engine.read(topic, request))
    return poll_answer(db, lambda: db.long_polls.read(topic, request, wait_ms=asked.wait_ms))


@carries_out(routes.LATEST)
def _latest(db: Database, topic: str, asked: LatestQuery) -> LatestResult:
    request = LatestRequest(
        prefix=tag_prefix(asked.tag),
        after=None if asked.after is None else asked.after.encode(),
        limit=limits.DIFF_LIMIT(asked.limit),
        budget_bytes=limits.DIFF_BATCH_BYTES.default,
    )
    return latest_view(topic, db.call(lambda engine: engine.latest.page(topic, request)))


@carries_out(routes.GET_RECORD)
def _get_record(db: Database, topic: str, _: None, position: str) -> Record:
    at = position_of(int(position) if position.isdigit() else position)
    return read_view(topic, db.call(lambda engine: engine.single_reads.get(topic, at))).records[0]


@carries_out(routes.NEWEST_RECORD)
def _newest_record(db: Database, topic: str, asked: routes.NewestQuery) -> Record:
    match = tag_match(asked.tag)
    return read_view(topic, db.call(lambda engine: engine.single_reads.newest(topic, match))).records[0]


@carries_out(routes.DELETE)
def _delete(db: Database, topic: str, asked: DeleteRequest) -> DeleteResult:
    below, selector = asked.selector()
    return db.call(lambda engine: engine.delete_records(topic, before_seq=below, match=selector))


@carries_out(routes.STATE)
def _state(db: Database, topic: str, asked: StateQuery) -> TopicState:
    return db.call(lambda engine: engine.topic_state(topic, touch=asked.touch))


@carries_out(routes.CONFIGURE)
def _configure(db: Database, topic: str, text: bytes) -> TopicConfig:
    return db.call(lambda engine: engine.put_topic(topic, _config_from(text))).config


@carries_out(routes.DROP)
def _drop(db: Database, topic: str, asked: DropQuery) -> bool:
    return db.call(lambda engine: engine.drop_topic(topic, if_empty=asked.if_empty)).deleted


@carries_out(routes.TOPICS)
def _topics(db: Database, _: str, asked: ListQuery) -> TopicPage:
    page, after = db.call(
        lambda engine: engine.page_of_topics(prefix=asked.prefix, after=asked.cursor or None, page_size=asked.page_size)
    )
    return TopicPage(page, after)


@carries_out(routes.PUT_ROUTER)
def _put_router(db: Database, router: str, asked: PutRouterRequest) -> RouterState:
    check_router_name(router)
    definition = asked.definition(router)
    done = db.call(lambda engine: engine.routers.put(definition))
    return _router_state(done.definition, created=done.created)


@carries_out(routes.GET_ROUTER)
def _get_router(db: Database, router: str, _: None) -> RouterState:
    shown = db.call(lambda engine: engine.routers.get(router))
    return _router_state(shown.definition, forwarded_total=shown.forwarded_total)


def _router_state(definition: RouterDef, **more: Any) -> RouterState:
    return RouterState(**definition.to_json(), **more)


@carries_out(routes.DELETE_ROUTER)
def _delete_router(db: Database, router: str, _: None) -> bool:
    return db.call(lambda engine: engine.routers.delete(router))


@carries_out(routes.ROUTERS)
def _routers(db: Database, _: str, asked: ListQuery) -> RouterPage:
    page, more = db.call(
        lambda engine: resolved(
            engine.routers.page(
                prefix=asked.prefix,
                source=asked.source,
                dest=asked.dest,
                after=asked.cursor or None,
                page_size=asked.page_size,
            )
        )
    )
    return RouterPage(page, page[-1].router if more else None)


# --- schedules -------------------------------------------------------------------------------------------------------


@carries_out(routes.PUT_SCHEDULE)
def _put_schedule(db: Database, schedule: str, asked: PutScheduleRequest) -> ScheduleState:
    check_topic_name(asked.topic)
    rule = asked.rule()
    return db.call(lambda engine: engine.schedules.put(schedule, asked.topic, rule))


@carries_out(routes.GET_SCHEDULE)
def _get_schedule(db: Database, schedule: str, _: None) -> ScheduleState:
    return db.call(lambda engine: resolved(engine.schedules.get(schedule)))


@carries_out(routes.DELETE_SCHEDULE)
def _delete_schedule(db: Database, schedule: str, _: None) -> ScheduleDropped:
    return db.call(lambda engine: engine.schedules.drop(schedule))


@carries_out(routes.RUN_SCHEDULE)
def _run_schedule(db: Database, schedule: str, _: None) -> ScheduleRun:
    return db.call(lambda engine: engine.schedules.run(schedule))


@carries_out(routes.PAUSE_SCHEDULE)
def _pause_schedule(db: Database, schedule: str, _: None) -> ScheduleState:
    return db.call(lambda engine: engine.schedules.set_paused(schedule, True))


@carries_out(routes.RESUME_SCHEDULE)
def _resume_schedule(db: Database, schedule: str, _: None) -> ScheduleState:
    return db.call(lambda engine: engine.schedules.set_paused(schedule, False))


@carries_out(routes.SCHEDULES)
def _schedules(db: Database, _: str, asked: ScheduleQuery) -> SchedulePage:
    after = asked.cursor or None
    page, more = db.call(
        lambda engine: resolved(
            engine.schedules.page(prefix=asked.prefix, topic=asked.topic, after=after, page_size=asked.page_size)
        )
    )
    return SchedulePage(schedules=page, next_cursor=page[-1].schedule if more else None)


# --- named cursors ---------------------------------------------------------------------------------------------------


@carries_out(routes.GET_CURSOR)
def _get_cursor(db: Database, topic: str, _: None, cursor: str) -> CursorState:
    return db.call(lambda engine: resolved(engine.cursors.get(topic, cursor)))


@carries_out(routes.COMMIT_CURSOR)
def _commit_cursor(db: Database, topic: str, asked: CommitRequest, cursor: str) -> CursorState:
    commit = asked.commit()
    return db.call(lambda engine: engine.admit(topic, lambda: engine.cursors.commit(topic, cursor, commit)))


@carries_out(routes.PUT_CURSOR)
def _put_cursor(db: Database, topic: str, asked: PutCursorRequest, cursor: str) -> CursorState:
    put = asked.put()
    return db.call(lambda engine: engine.admit(topic, lambda: engine.cursors.put(topic, cursor, put)))


@carries_out(routes.DELETE_CURSOR)
def _delete_cursor(db: Database, topic: str, _: None, cursor: str) -> CursorDropped:
    return db.call(lambda engine: engine.admit(topic, lambda: engine.cursors.drop(topic, cursor)))


@carries_out(routes.TOPIC_CURSORS)
def _topic_cursors(db: Database, topic: str, _: None) -> CursorPage:
    return CursorPage(db.call(lambda engine: resolved(engine.cursors.of_topic(topic))), None)


@carries_out(routes.CURSORS)
def _cursors(db: Database, _: str, asked: ListQuery) -> CursorPage:
    after = tuple(asked.cursor.split(_BETWEEN)) if asked.cursor else None
    page, more = db.call(
        lambda engine: resolved(
            engine.cursors.page(prefix=asked.prefix, after=after, page_size=asked.page_size)  # type: ignore[arg-type]
        )
    )
    last = page[-1] if more else None
    return CursorPage(page, None if last is None else _BETWEEN.join((last.topic, last.kind, last.cursor)))
