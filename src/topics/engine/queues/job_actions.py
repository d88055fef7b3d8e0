"""Job actions: cancel, retry now, move, and the redrive of dead letters (`docs/spec/semantics.md#sec-16-15` and
`docs/spec/semantics.md#sec-16-16`).

A job that moves is appended to the other queue with a unique key of where it came from, and deleted only when that is
acked. Always holds: whatever crashes in between, and however often the call is repeated, it is appended once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from topics.core.delete import decide_delete_seqs
from topics.core.meta import without_keys
from topics.core.queue.operations import queue_of, ready_events
from topics.core.queue.queue_job import ACKING, LEASED, MOVING
from topics.core.topic import TopicLog
from topics.engine.queues.job_ends import JobEnd
from topics.engine.queues.job_lists import live_seqs
from topics.engine.reading.reads import Payload, PayloadSearch
from topics.engine.ticket import Ticket, chain, resolved
from topics.errors import BatchTooLarge, InvalidRequest, NotAQueue
from topics.limits import DAY_MS, MIB, SEQS_PER_CALL_MAX
from topics.model.names import TagMatch
from topics.model.payload import split_blob
from topics.model.record import JobField, WriteBatch, stored_batch
from topics.model.results import CancelResult, DeleteResult, MoveResult, RedriveResult, RetryResult
from topics.model.run import StoredRecord

_T = TypeVar("_T")

if TYPE_CHECKING:
    from topics.engine.queues.queues import Queues

KEY_MS: Final = 30 * DAY_MS
PORTION_BYTES: Final = 8 * MIB  # of records that one step has in memory, by mean size
PREFIX: Final = "$dead_letter_"
_META = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Redrive(NamedTuple):
    """Which letters come back, and where."""

    to: str | None = None
    match: TagMatch | None = None
    error: str | None = None
    from_ts: int = 0
    to_ts: int | None = None
    from_seq: int = 0
    limit: int = SEQS_PER_CALL_MAX
    rate: float | None = None
    delay_ms: int = 0
    dry_run: bool = False


class JobActions:
    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._ctx = queues.context

    # --- cancel, retry --------------------------------------------------------------------------------------------

    def cancel(self, name: str, seqs: Sequence[int]) -> Ticket[CancelResult]:
        """Delete jobs, whoever holds them."""

        def act(topic: TopicLog, now: int) -> Ticket[CancelResult]:
            ending = queue_of(topic).ending
            chosen = [seq for seq in dict.fromkeys(seqs) if topic.may_be_live(seq) and seq not in ending]
            answer = CancelResult(topic.name, len(chosen), _rest(seqs, chosen))
            gone = self._queues.ends.end(topic, "cancelled", [JobEnd(seq) for seq in chosen])
            return chain(gone, lambda _: resolved(answer))

        return self._on_queue(name, seqs, act)

    def retry(self, name: str, seqs: Sequence[int]) -> Ticket[RetryResult]:
        """End delays now."""

        def act(topic: TopicLog, now: int) -> Ticket[RetryResult]:
            events, skipped = ready_events(topic, seqs, now)
            answer = RetryResult(topic.name, len(events), skipped)
            return chain(self._queues.change(topic, events), lambda _: resolved(answer))

        return self._on_queue(name, seqs, act)

    def _on_queue(self, name: str, seqs: Sequence[int], act: Callable[[TopicLog, int], Ticket[_T]]) -> Ticket[_T]:
        if len(seqs) > SEQS_PER_CALL_MAX:
            raise BatchTooLarge.of_seqs(len(seqs), max=SEQS_PER_CALL_MAX)
        topic = self._queues.queue(name)

        def go_on(_: None) -> Ticket[_T]:
            self._ctx.check_exists(topic)
            now = self._ctx.clock.now_ms()
            queue_of(topic).expire(now)
            return act(topic, now)

        return chain(self._queues.floor_log.ensure_logged(topic), go_on)

    def _delete(self, topic: TopicLog, seqs: Sequence[int]) -> Ticket[DeleteResult | None]:
        op = decide_delete_seqs(topic, tuple(seqs), reason="api")
        return self._queues.deletes.log(topic, op) if op.seqs else resolved(None)  # type: ignore[return-value]

    # --- move -----------------------------------------------------------------------------------------------------

    def move(self, name: str, seqs: Sequence[int], to: str) -> Ticket[MoveResult]:
        """Append jobs that nobody holds to another queue, then delete them here."""
        if to == name:
            raise InvalidRequest("to must name another queue")
        self._queues.queue(to)

        def act(topic: TopicLog, now: int) -> Ticket[MoveResult]:
            chosen = [seq for seq in dict.fromkeys(seqs) if topic.may_be_live(seq) and not _is_held(topic, seq)]
            portion = chosen[: _portion(topic, len(chosen))]  # the rest is skipped, and may be asked for again
            search = PayloadSearch(self._ctx, topic, portion).begin()
            return chain(search, partial(self._move, topic, seqs, portion, to))

        return self._on_queue(name, seqs, act)

    def _move(
        self, topic: TopicLog, asked: Sequence[int], seqs: Sequence[int], to: str, payload: Payload
    ) -> Ticket[MoveResult]:
        if payload.error is not None:
            raise payload.error
        records = [_record(payload, seq) for seq in seqs if seq in payload.found and not _is_held(topic, seq)]
        moved = [record.seq for record in records]
        answer = MoveResult(topic.name, to, len(moved), _rest(asked, moved))
        return chain(self._transfer(topic, to, records, "$move", Redrive()), lambda _: resolved(answer))

    # --- redrive --------------------------------------------------------------------------------------------------

    def redrive(
        self, name: str, asked: Redrive, permits: Callable[[str], bool] = lambda _: True
    ) -> Ticket[RedriveResult]:
        """`permits` says into which queues the caller may write."""
        topic = self._ctx.state.topic(name)
        if asked.to is not None:
            self._queues.queue(asked.to)
            if asked.to == name:
                raise InvalidRequest("to must name another queue")

        def go_on(_: None) -> Ticket[RedriveResult]:
            self._ctx.check_exists(topic)
            if topic.queue is not None:
                topic.queue.expire(self._ctx.clock.now_ms())
            seqs = list(islice(live_seqs(topic, asked.from_seq), _portion(topic, asked.limit)))
            return chain(
                PayloadSearch(self._ctx, topic, seqs).begin(), partial(self._redrive, topic, asked, permits, seqs)
            )

        return chain(self._queues.floor_log.ensure_logged(topic), go_on)

    def _redrive(
        self,
        topic: TopicLog,
        asked: Redrive,
        permits: Callable[[str], bool],
        seqs: Sequence[int],
        payload: Payload,
    ) -> Ticket[RedriveResult]:
        if payload.error is not None:
            raise payload.error
        targets: dict[str, list[StoredRecord]] = {}
        skipped: list[int] = []
        matched = 0
        for seq in seqs:
            if seq not in payload.found or _is_held(topic, seq):
                continue
            record = _record(payload, seq)
            letter = _letter(record)
            if not _fits(asked, record, letter):
                continue
            matched += 1
            target = asked.to or letter.get("from")
            if target is None or not permits(target) or not self._is_queue(target):
                skipped.append(seq)
            else:
                targets.setdefault(target, []).append(record)
        last = seqs[-1] if seqs else topic.head
        caught_up = last >= topic.head or next(live_seqs(topic, last), None) is None
        count = sum(map(len, targets.values()))
        answer = RedriveResult(topic.name, len(seqs), matched, count, skipped, last, caught_up)
        if asked.dry_run:
            return resolved(answer)
        done: Ticket[None] = resolved(None)
        for target, records in targets.items():
            step = partial(self._transfer, topic, target, records, "$redrive", asked)
            done = chain(done, lambda _, step=step: step())  # type: ignore[misc]
        return chain(done, lambda _: resolved(answer))

    def _is_queue(self, name: str) -> bool:
        topic = self._ctx.state.topics.get(name)
        return topic is not None and topic.queue is not None

    # --- from one topic to another, once --------------------------------------------------------------------------

    def _transfer(
        self, topic: TopicLog, to: str, records: Sequence[StoredRecord], kind: str, asked: Redrive
    ) -> Ticket[None]:
        if not records:
            return resolved(None)
        target = self._ctx.state.topic(to)
        if target.queue is None:
            raise NotAQueue(to)
        keys = [f"{kind}:{topic.epoch:x}:{record.seq}" for record in records]
        appended = self._queues.append(to, _batch(records, keys, asked), target.config)

        def gone(_: object) -> Ticket[None]:
            """The keys have done their work; a crash before this leaves them until their time is over."""
            if target.queue is not None:
                for key in keys:
                    target.queue.unique.forget(key)
            return resolved(None)

        deleted = chain(appended, lambda _: self._delete(topic, [record.seq for record in records]))
        return chain(deleted, gone)


def _batch(records: Sequence[StoredRecord], keys: Sequence[str], asked: Redrive) -> WriteBatch:
    apart_ms = 0.0 if asked.rate is None else 1000 / asked.rate
    waits = [asked.delay_ms + int(at * apart_ms) for at in range(len(records))]
    return stored_batch(
        [_texts(record) for record in records],
        tags=[record.tag for record in records],
        nodes=[record.node for record in records],
        jobs=[JobField(delay_ms=wait, key=key, for_ms=KEY_MS) for key, wait in zip(keys, waits, strict=True)],
    )


def _texts(record: StoredRecord) -> tuple[bytes, bytes | None]:
    data, meta = split_blob(record.blob)
    return data, None if not meta else without_keys(meta, PREFIX)


def _record(payload: Payload, seq: int) -> StoredRecord:
    run, at = payload.found[seq]
    return run.record(at)


def _letter(record: StoredRecord) -> dict[str, str]:
    """What the meta of a dead letter says, without the common part of the names."""
    _, meta = split_blob(record.blob)
    try:
        found = _META.decode(meta) if meta else {}
        return {
            name[len(PREFIX) :]: msgspec.json.decode(text, type=str)
            for name, text in found.items()
            if name.startswith(PREFIX)
        }
    except (msgspec.DecodeError, ValueError):
        return {}


def _fits(asked: Redrive, record: StoredRecord, letter: dict[str, str]) -> bool:
    if asked.match is not None and (record.tag is None or not asked.match.matches(record.tag)):
        return False
    if record.ts < asked.from_ts or (asked.to_ts is not None and record.ts > asked.to_ts):
        return False
    return asked.error is None or asked.error in letter.get("error", "")


def _is_held(topic: TopicLog, seq: int) -> bool:
    job = None if topic.queue is None else topic.queue.jobs.get(seq)
    return job is not None and job.state in (LEASED, ACKING, MOVING)


def _portion(topic: TopicLog, wanted: int) -> int:
    mean_bytes = topic.bytes // topic.count if topic.count else 0
    return max(min(wanted, PORTION_BYTES // (mean_bytes + 1)), 1)


def _rest(asked: Sequence[int], done: Sequence[int]) -> list[int]:
    """Seqs of a call that did not count, repeats among them."""
    left = set(done)
    rest: list[int] = []
    for seq in asked:
        if seq in left:
            left.discard(seq)
        else:
            rest.append(seq)
    return rest
