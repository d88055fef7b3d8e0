"""Queue verbs: what a queue and its dead letters can be asked, written once, as coroutines over a door (`verbs`).

A queue that is made here is safe: a job is tried a bounded number of times, with growing pauses, and then kept as a
dead letter (`safe_config`). Queues made by raw HTTP have the contract's defaults, which promise none of this."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from typing import Any, Unpack

import msgspec

from topics import limits
from topics.client import routes
from topics.client.routes import JobQuery
from topics.client.verbs import Door, Match, TagSeqs, TopicVerbs, condition_of, config_text, each
from topics.errors import InvalidRequest
from topics.model.config import ConfigFields, TopicConfig
from topics.model.paging import After
from topics.model.results import (
    AckResult,
    AppendResult,
    CancelResult,
    ClaimResult,
    DeleteResult,
    ExtendResult,
    Job,
    JobInfo,
    JobState,
    MoveResult,
    NackResult,
    RedriveResult,
    RetryResult,
    WorkerInfo,
)
from topics.model.values import Event, Moment, ProgressReport, Span, Unique, json_text, moment_ms
from topics.wire.incoming.queue_requests import (
    AckRequest,
    ClaimRequest,
    ExtendRequest,
    MoveRequest,
    NackRequest,
    RedriveRequest,
    SeqsRequest,
)
from topics.wire.incoming.requests import checked, predicate

MAX_DELIVERIES = 20  # with the default `retry`, a job that always fails is tried for nine hours

Seqs = Iterable[int | Job]
"""Jobs by their seqs. A `Job` brings its lease id along, so that a lease which has passed on is left alone."""


def safe_config(name: str, config: ConfigFields) -> ConfigFields:
    """The config of a new queue: retries with growing pauses and dead letters, where nothing else is said."""
    safe: ConfigFields = {"type": "queue", "retry": {}}
    if "dead_letter" not in config or config["dead_letter"]:
        safe["max_deliveries"] = MAX_DELIVERIES
        safe["dead_letter"] = dead_letter_name(name)
    return {**safe, **config}


def dead_letter_name(queue: str) -> str:
    return f"{queue}.dead"


class QueueVerbs(TopicVerbs):
    """A topic of type `queue`. Its first use creates it as one."""

    def __init__(self, door: Door, name: str, config: ConfigFields) -> None:
        super().__init__(door, name, config_text(safe_config(name, config)), given=("type", *config))

    async def configure(self, /, **config: Unpack[ConfigFields]) -> TopicConfig:
        """Create the queue, or replace its config as a whole: what is left out goes back to what a new queue has."""
        return await super().configure(**safe_config(self.name, config))

    # --- producing ------------------------------------------------------------------------------------------------

    async def append(
        self,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Any = None,
        key: str | None = None,
        if_head: After | None = None,
        if_tag_seq: int | TagSeqs | None = None,
        delay: Span | None = None,
        deliver_at: Moment | None = None,
        priority: int | None = None,
        unique: str | Unique | None = None,
    ) -> AppendResult:
        """Append one job. When this returns, it is as safe as the queue's class says.

        It is handed out after `delay` (seconds or a timedelta), or at `deliver_at` (a datetime or Unix time). Higher
        priorities go first, -9 to 9. Of jobs with one `unique` key only one is there at a time: `first_seq` of the
        answer names it, and `count` is 0 if it was there before."""
        event = Event(data, tag, node, meta, delay, deliver_at, priority, unique)
        return await self._append([event], node=None, key=key, condition=condition_of(if_head, if_tag_seq, tag))

    # --- working --------------------------------------------------------------------------------------------------

    async def claim(self, node: str, *, max: int = 1, lease_ms: int | None = None, wait_ms: int = 0) -> ClaimResult:
        """Lease up to `max` jobs to a node; none is an empty list. With `wait_ms` it waits up to so long for one."""
        request = checked(ClaimRequest, node=node, max=max, lease_ms=lease_ms, wait_ms=wait_ms)
        return await self._run(routes.CLAIM, request)

    async def ack(self, jobs: Seqs, *, node: str, results: Sequence[Any] = ()) -> AckResult:
        """Done: the jobs are deleted. `results`, one for each job, go to the history of a queue with `done`."""
        texts = [json_text(result) for result in results]
        request = checked(AckRequest, node=node, results=texts, **_seqs_and_leases(jobs))
        return await self._run(routes.ACK, request)

    async def nack(
        self,
        jobs: Seqs,
        *,
        node: str,
        delay_ms: int | None = None,
        error: str | None = None,
        final: bool = False,
    ) -> NackResult:
        """Not done: somebody may claim them again, after this delay or as the queue's `retry` says. `final`: they go to
        the dead letters at once."""
        request = checked(NackRequest, node=node, delay_ms=delay_ms, error=error, final=final, **_seqs_and_leases(jobs))
        return await self._run(routes.NACK, request)

    async def extend(
        self, jobs: Seqs, *, node: str, lease_ms: int, progress: Sequence[ProgressReport | None] = ()
    ) -> ExtendResult:
        """Hold the jobs until `lease_ms` from now. `progress`, one for each job, says how far the work on it is."""
        told = [None if report is None else msgspec.structs.asdict(report) for report in progress]
        request = checked(ExtendRequest, node=node, lease_ms=lease_ms, progress=told, **_seqs_and_leases(jobs))
        return await self._run(routes.EXTEND, request)

    # --- looking --------------------------------------------------------------------------------------------------

    def jobs(self, *, state: JobState | None = None, tag: str | None = None) -> AsyncIterator[JobInfo]:
        """The jobs that are there, ascending by seq, without claiming any: of one state, of one tag, or all."""
        return each(self._job_pages(state, tag))

    async def _job_pages(self, state: JobState | None, tag: str | None) -> AsyncGenerator[list[JobInfo], None]:
        cursor: str | None = ""
        while cursor is not None:
            page = await self._run(routes.JOBS, checked(JobQuery, state=state, tag=tag, cursor=cursor))
            yield page.jobs
            cursor = page.next_cursor

    async def workers(self) -> list[WorkerInfo]:
        """Who holds jobs, waits for some, or called in the last minutes."""
        return (await self._run(routes.WORKERS, None)).workers

    # --- acting on jobs, whoever holds them -----------------------------------------------------------------------

    async def cancel(self, jobs: Iterable[int | Job | JobInfo]) -> CancelResult:
        """Delete jobs, in flight or not. Whoever works on one is not interrupted; its ack is skipped."""
        return await self._run(routes.CANCEL, checked(SeqsRequest, seqs=_seqs(jobs)))

    async def retry(self, jobs: Iterable[int | Job | JobInfo]) -> RetryResult:
        """Delayed jobs are ready now."""
        return await self._run(routes.RETRY, checked(SeqsRequest, seqs=_seqs(jobs)))

    async def move(self, jobs: Iterable[int | Job | JobInfo], to: str) -> MoveResult:
        """Jobs that are not in flight go to another queue, each once."""
        return await self._run(routes.MOVE, checked(MoveRequest, seqs=_seqs(jobs), to=to))

    async def pause(self) -> bool:
        """Nothing is handed out from now on; jobs in flight may be finished. True: it is paused."""
        return (await self._run(routes.PAUSE, None)).paused

    async def resume(self) -> bool:
        """Jobs are handed out again. False: it is not paused."""
        return (await self._run(routes.RESUME, None)).paused

    async def purge(self) -> DeleteResult:
        """Delete every job that is there now, in flight or not."""
        return await self.delete(before_seq=(await self.state(touch=False)).head_seq + 1)

    async def dead_letters(self) -> DeadLetterVerbs:
        """The topic that takes the jobs which were given up, as the queue's config names it."""
        name = (await self.state(touch=False)).config.dead_letter
        if name is None:
            raise InvalidRequest(f"queue {self.name!r} has no dead letters; `configure` with dead_letter gives it some")
        return DeadLetterVerbs(self._door, name)


class DeadLetterVerbs(TopicVerbs):
    """The dead letters of a queue: a topic whose records say in their `headers` why they are there."""

    async def redrive(
        self,
        *,
        to: str | None = None,
        match: Match = None,
        error: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        limit: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
    ) -> RedriveResult:
        """Take dead letters back into the queues they came from, or into `to`: each once, with a fresh count.

        Only those whose tag matches (`"x"`, `"x*"`), whose last error contains `error`, and which came here from
        `since` until `until`. `limit` letters are looked at, the oldest first. With `rate`, so many of them become
        ready a second. `dry_run` only counts."""
        asked = {
            "to": to,
            "match": predicate(match),
            "error": error,
            "from_ts": 0 if since is None else moment_ms(since, "since"),
            "to_ts": None if until is None else moment_ms(until, "until"),
            "rate": rate,
            "dry_run": dry_run,
        }
        total = RedriveResult(self.name, 0, 0, 0, [], 0, False)
        while not total.caught_up and (limit is None or total.examined < limit):
            left = limits.REDRIVE_LIMIT.high if limit is None else limit - total.examined
            request = checked(
                RedriveRequest,
                **asked,
                from_seq=total.next_from_seq,
                limit=min(left, limits.REDRIVE_LIMIT.high),
                delay_ms=0 if rate is None else int(total.redriven * 1000 / rate),
            )
            total = _joined(total, await self._run(routes.REDRIVE, request))
        return total


def _joined(before: RedriveResult, page: RedriveResult) -> RedriveResult:
    return RedriveResult(
        page.topic,
        before.examined + page.examined,
        before.matched + page.matched,
        before.redriven + page.redriven,
        before.skipped + page.skipped,
        page.next_from_seq,
        page.caught_up,
    )


def _seqs(jobs: Iterable[int | Job | JobInfo]) -> list[Any]:
    if isinstance(jobs, int | Job | JobInfo):
        raise InvalidRequest("cancel, retry and move take a list of jobs or seqs; put a single one into brackets")
    return [job.seq if isinstance(job, Job | JobInfo) else job for job in jobs]


def _seqs_and_leases(jobs: Seqs) -> dict[str, list[Any]]:
    """Seqs, and the lease ids of those that came as a `Job`: no lease ids at all if none did."""
    if isinstance(jobs, int | Job):
        raise InvalidRequest("ack, nack and extend take a list of jobs or seqs; put a single one into brackets")
    given = list(jobs)
    leases = [job.lease_id if isinstance(job, Job) else "" for job in given]
    return {
        "seqs": [job.seq if isinstance(job, Job) else job for job in given],
        "lease_ids": leases if any(leases) else [],
    }
