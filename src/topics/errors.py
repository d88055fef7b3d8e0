"""Errors: the one tree that every part raises from and every door reports from.

Each class carries its wire `code`, its HTTP `status`, whether the same call may succeed later (`retryable`) and the
exit status of a command that ends with it. A class that states a status is an error of the wire, and its code is its
name: `TopicNotFound` is `topic_not_found`. Every other class is reported as the one it derives from, so `except
Throttled` means the same embedded and through a client. `message` is one sentence for people; `detail` is exactly the
object that `docs/spec/http-api.md#sec-5-2` lists for the code, or None. Facts that the wire must not show are plain
attributes. Imported by every layer; imports nothing of ours.

    TopicsError
    ├── RequestRefused                      the call was wrong; nothing was stored
    │   ├── InvalidRequest              400 invalid_request
    │   ├── BatchTooLarge               400 batch_too_large
    │   ├── RecordTooLarge              400 record_too_large
    │   ├── Unauthorized                401 unauthorized
    │   ├── Forbidden                   403 forbidden
    │   ├── HostNotAllowed              403 host_not_allowed
    │   ├── OriginNotAllowed            403 origin_not_allowed
    │   ├── TopicNotFound               404 topic_not_found
    │   ├── RouterNotFound              404 router_not_found
    │   ├── ScheduleNotFound            404 schedule_not_found
    │   ├── CursorNotFound              404 cursor_not_found
    │   ├── RecordNotFound              404 record_not_found
    │   ├── NotFound                    404 not_found
    │   ├── MethodNotAllowed            405 method_not_allowed
    │   ├── NotAcceptable               406 not_acceptable
    │   ├── RouterCycle                 409 router_cycle
    │   ├── TopicExistsIncompatible     409 topic_exists_incompatible
    │   ├── TopicNotEmpty               409 topic_not_empty
    │   ├── NotAQueue                   409 not_a_queue
    │   ├── JobExists                   409 job_exists
    │   ├── CursorFenced                409 cursor_fenced
    │   ├── CursorForeign               409 cursor_foreign
    │   ├── VersionConflict             409 version_conflict
    │   ├── PayloadTooLarge             413 payload_too_large
    │   ├── UnsupportedMediaType        415 unsupported_media_type
    │   └── TopicFull                   422 topic_full                 retryable
    ├── Throttled                       429 throttled                  retryable
    │   └── WalFull                         a log shard's queue is full
    ├── Internal                        500 internal
    │   ├── WalReadOnly                     a log shard stopped taking writes
    │   ├── CommitFailed                    a batch was not committed, or nobody knows
    │   ├── CorruptSegment                  one record of a sealed segment is damaged
    │   ├── Corruption                      bytes at a place fail their check
    │   └── StorageIo                       a read failed           retryable
    ├── NotReady                        503 not_ready                  retryable
    │   ├── ColdUnavailable                 the cold store is unreachable
    │   └── RotationFailed                  a log shard could not begin its next file, and tries again
    ├── DiskFull                        503 disk_full                  retryable
    ├── ShuttingDown                    503 shutting_down              retryable
    ├── StartRefused                        the data directory must not be opened as it is
    │   ├── DataDirLocked
    │   ├── MetadataLost
    │   ├── WalMissing
    │   ├── UnsupportedVersion
    │   └── ColdStoreMismatch
    ├── DataLoss                            a reader asked to be stopped by a gap
    ├── Unreachable                         no answer came from the server  retryable
    └── ConfigError                         a setting is wrong; exit status 2
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

Detail = Mapping[str, object]
RETRY_AFTER_S = 1  # the one value that `Retry-After` ever has


class TopicsError(Exception):
    """Root of the tree. Raise a subclass."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    exit_status: ClassVar[int] = 1
    default_message: ClassVar[str] = "internal error"

    def __init_subclass__(
        cls, *, status: int | None = None, retryable: bool | None = None, message: str | None = None
    ) -> None:
        """`class TopicNotFound(RequestRefused, status=404)`; what is not given is inherited."""
        super().__init_subclass__()
        if status is not None:
            cls.status = status
            cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        if retryable is not None:
            cls.retryable = retryable
        if message is not None:
            cls.default_message = message

    def __init__(self, message: str | None = None, *, detail: Detail | None = None) -> None:
        self.message = message or self.default_message
        super().__init__(self.message)
        self.detail = detail
        self.retry_after_s: float | None = RETRY_AFTER_S if self.status in (429, 503) else None

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors differ per class, so a pickle carries the state and not the arguments (Spark moves errors).
        return _revive, (type(self), self.args, self.__dict__.copy())

    def envelope(self) -> dict[str, dict[str, object]]:
        """The body of an HTTP error response; `detail` is left out when there is none."""
        body: dict[str, object] = {"code": self.code, "message": self.message}
        if self.detail is not None:
            body["detail"] = dict(self.detail)
        return {"error": body}


def _revive(cls: type[TopicsError], args: tuple[Any, ...], state: dict[str, Any]) -> TopicsError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


class TopicsWarning(UserWarning):
    """Something that the server left out of account, as it said in its answer."""


# --- the call was wrong ---------------------------------------------------------------------------------------------


class RequestRefused(TopicsError):
    """The caller must change the call; nothing was stored."""

    code = "invalid_request"
    status = 400


class InvalidRequest(RequestRefused):
    @classmethod
    def bad_dead_letter(cls, name: str) -> Self:
        return cls(f"dead_letter {name!r} is not a topic name", detail={"dead_letter": name})


class BatchTooLarge(RequestRefused, status=400):
    @classmethod
    def of_records(cls, given: int, *, max: int) -> Self:
        return cls(f"a write takes at most {max} records, not {given}")

    @classmethod
    def of_seqs(cls, given: int, *, max: int) -> Self:
        return cls(f"a queue call takes at most {max} seqs, not {given}", detail={"seqs": given, "max": max})


class RecordTooLarge(RequestRefused, status=400):
    """One record is larger than a record may be."""


class Unauthorized(RequestRefused, status=401, message="a valid bearer key is needed"):
    """The server has keys, and the call brought none of them."""


class Forbidden(RequestRefused, status=403, message="the key does not permit this"):
    """`for_topic` is for a name that stands outside the path, and for config-on-write without admin."""

    @classmethod
    def for_topic(cls, topic: str) -> Self:
        """`topic` is a name that the caller has sent."""
        return cls(f"the key does not permit this on topic {topic!r}", detail={"topic": topic})


class HostNotAllowed(RequestRefused, status=403):
    """A server without keys answers only to names that no stranger can make a browser believe in."""


class OriginNotAllowed(RequestRefused, status=403):
    """A page of another origin would change something on a server without keys."""


class TopicNotFound(RequestRefused, status=404):
    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} does not exist", detail={"topic": topic})


class RouterNotFound(RequestRefused, status=404):
    def __init__(self, router: str) -> None:
        super().__init__(f"router {router!r} does not exist", detail={"router": router})


class ScheduleNotFound(RequestRefused, status=404):
    def __init__(self, schedule: str) -> None:
        super().__init__(f"schedule {schedule!r} does not exist", detail={"schedule": schedule})


class CursorNotFound(RequestRefused, status=404):
    def __init__(self, topic: str, cursor: str) -> None:
        told = f"topic {topic!r} has no cursor {cursor!r}; a first commit makes one"
        super().__init__(told, detail={"topic": topic, "cursor": cursor})


class RecordNotFound(RequestRefused, status=404):
    """`why` in `detail`: deleted, lost (`reason` says how), or not_yet; absent if no record matches."""

    @classmethod
    def of(cls, topic: str, seq: int, told: str, *, why: str, reason: str | None = None) -> Self:
        detail = {"topic": topic, "seq": seq, "why": why} | ({} if reason is None else {"reason": reason})
        return cls(f"record {seq} of topic {topic!r} {told}", detail=detail)


class NotFound(RequestRefused, status=404, message="there is nothing at this address"):
    """No endpoint has this path."""


class MethodNotAllowed(RequestRefused, status=405, message="this address does not take that method"):
    """The path has an endpoint, but not for this method."""


class NotAcceptable(RequestRefused, status=406, message="this address only sends text/event-stream"):
    """The client does not accept what the endpoint sends."""


class RouterCycle(RequestRefused, status=409):
    """`cycle` starts and ends with the new router's source."""

    def __init__(self, cycle: Sequence[str]) -> None:
        super().__init__(f"the router would close a cycle: {' -> '.join(cycle)}", detail={"cycle": list(cycle)})
        self.cycle = tuple(cycle)


class TopicExistsIncompatible(RequestRefused, status=409):
    @classmethod
    def type_change(cls, topic: str, *, existing_type: str, requested_type: str) -> Self:
        detail = {"topic": topic, "existing_type": existing_type, "requested_type": requested_type}
        return cls(f"topic {topic!r} is a {existing_type} and cannot become a {requested_type}", detail=detail)

    @classmethod
    def fan_in(cls, dest: str) -> Self:
        detail = {"topic": dest, "reason": "router_dest_fan_in"}
        return cls(f"topic {dest!r} is already fed by a router from another source", detail=detail)

    @classmethod
    def repoint(cls, router: str, *, existing_source: str, existing_dest: str) -> Self:
        detail = {
            "router": router,
            "reason": "router_repoint_forbidden",
            "existing_source": existing_source,
            "existing_dest": existing_dest,
        }
        return cls(f"router {router!r} already goes from {existing_source!r} to {existing_dest!r}", detail=detail)

    @classmethod
    def schedule_topic(cls, schedule: str) -> Self:
        detail = {"schedule": schedule, "reason": "schedule_topic_fixed"}
        return cls(f"schedule {schedule!r} is another topic's; delete it first", detail=detail)


class TopicNotEmpty(RequestRefused, status=409):
    def __init__(self, topic: str, *, count: int) -> None:
        super().__init__(f"topic {topic!r} still holds {count} records", detail={"topic": topic, "count": count})


class NotAQueue(RequestRefused, status=409):
    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} is a log, not a queue", detail={"topic": topic})


class JobExists(RequestRefused, status=409):
    """A unique key stands, and the write said to refuse then."""

    def __init__(self, *, index: int, seq: int) -> None:
        where = f"job {seq}" if seq else "another record of the batch"
        super().__init__(f"records[{index}].unique: {where} stands for this key", detail={"index": index, "seq": seq})


class CursorFenced(RequestRefused, status=409):
    def __init__(self, topic: str, cursor: str, *, owner: str | None, fence: int) -> None:
        stands = "has no owner" if owner is None else f"was taken over by {owner!r}"
        told = f"cursor {cursor!r} of topic {topic!r} {stands}: stop, or take it over again"
        super().__init__(told, detail={"topic": topic, "cursor": cursor, "owner": owner, "fence": fence})


class CursorForeign(RequestRefused, status=409):
    def __init__(self, topic: str, cursor: str, *, position: str, head_seq: int) -> None:
        told = f"position {position} is none of topic {topic!r}, whose head is {head_seq}; the cursor stays where it is"
        super().__init__(told, detail={"topic": topic, "cursor": cursor, "head_seq": head_seq})


class VersionConflict(RequestRefused, status=409):
    """A write expected another version; `detail` says what is there."""


class PayloadTooLarge(RequestRefused, status=413):
    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"a request body may hold at most {max_bytes} bytes")


class UnsupportedMediaType(RequestRefused, status=415, message="the body must be sent as application/json"):
    """The body has another content type or coding than the endpoint takes."""


class TopicFull(RequestRefused, status=422, retryable=True):
    """May succeed once consumers have drained the topic."""

    def __init__(self, topic: str, *, cap_records: int, cap_bytes: int, head_seq: int, earliest_seq: int) -> None:
        detail = {
            "topic": topic,
            "cap_records": cap_records,
            "cap_bytes": cap_bytes,
            "head_seq": head_seq,
            "earliest_seq": earliest_seq,
        }
        super().__init__(f"topic {topic!r} is full and refuses new records", detail=detail)


# --- the call was fine, the server cannot serve it now ---------------------------------------------------------------


class Throttled(TopicsError, status=429, retryable=True):
    """A cap or back-pressure refused the call before anything was stored."""

    @classmethod
    def cap(cls, limit: str, *, max: int) -> Self:
        """A resource cap of `docs/spec/http-api.md#sec-9`, for instance `Throttled.cap("max_topics", max=2)`."""
        return cls(f"the server's limit {limit} of {max} is reached", detail={"limit": limit, "max": max})

    @classmethod
    def shed(cls, retry_after_ms: int) -> Self:
        """Refused at once under full pressure (`docs/spec/delivery.md#sec-9`)."""
        return cls("the server is under pressure", detail={"retry_after_ms": retry_after_ms})


class WalFull(Throttled, message="the commit queue is full"):
    """The queue of a log shard is full; a submission is refused whole."""


class Internal(TopicsError):
    """A failed commit or a bug; what was asked is not visible."""


ReadOnlyCause = Literal["no_space", "write", "sync", "rotate", "removed", "writer_dead"]


class WalReadOnly(Internal):
    """Every write, delete and config change of the group's topics is refused; reads go on."""

    def __init__(self, cause: ReadOnlyCause) -> None:
        super().__init__(f"the log is read-only after a failure ({cause})")
        self.cause = cause


class CommitFailed(Internal):
    """`not_committed`: absent for good. `unknown`: whole or absent after a restart, so retry with the same key."""

    def __init__(self, outcome: Literal["not_committed", "unknown"], *, cause: ReadOnlyCause = "write") -> None:
        super().__init__(f"the commit failed ({outcome})")
        self.outcome = outcome
        self.cause = cause


class CorruptSegment(Internal):
    """That record is damaged on disk; every other one is still served."""

    def __init__(self, topic: str, *, seq: int, segment: str) -> None:
        super().__init__(f"record {seq} of topic {topic!r} is damaged in segment {segment}")
        self.topic = topic
        self.seq = seq
        self.segment = segment


class Corruption(Internal):
    """A place, not an end: bytes of `file` at `offset` fail the check named by `reason`."""

    def __init__(self, *, file: str, offset: int, reason: str) -> None:
        super().__init__(f"{file} is damaged at byte {offset}: {reason}")
        self.file = file
        self.offset = offset
        self.reason = reason


class StorageIo(Internal, retryable=True):
    """A read of stored bytes failed; no state changed, a retry is fine."""


class NotReady(TopicsError, status=503, retryable=True):
    """Recovery still runs, or writes are refused; `replay_progress` is 0.0..1.0."""

    def __init__(self, replay_progress: float, *, message: str = "recovery is still running") -> None:
        super().__init__(message, detail={"replay_progress": replay_progress})

    @classmethod
    def refusing_writes(cls, problems: Sequence[str]) -> Self:
        """For the readiness probe only: calls that need no log are served."""
        error = cls(1.0, message=problems[0])
        error.detail = {"replay_progress": 1.0, "problems": list(problems)}
        return error


class ColdUnavailable(NotReady):
    """A read needs a cold store that does not answer. Why 503: `docs/decisions/0002-cold-unavailable-is-503.md`."""

    def __init__(self, store: str, *, reason: str) -> None:
        super().__init__(1.0, message=f"the cold store {store} is unavailable: {reason}")
        self.store = store
        self.reason = reason


class DiskFull(
    TopicsError,
    status=503,
    retryable=True,
    message="the server's disk is full: nothing was stored, and writes resume when there is space again",
):
    """A log shard has no space for it; nothing was stored. Writes resume by themselves when there is space again."""

    cause: ClassVar[ReadOnlyCause] = "no_space"


class RotationFailed(NotReady):
    """A log shard could not begin its next file (no descriptor is left, say); nothing was stored. It tries again."""

    cause: ClassVar[ReadOnlyCause] = "rotate"

    def __init__(self) -> None:
        super().__init__(
            1.0, message="the log cannot begin a new file: nothing was stored, and writes resume when it can"
        )


def log_refusal(cause: ReadOnlyCause) -> DiskFull | RotationFailed | WalReadOnly:
    """What a read-only log shard answers."""
    if cause == "no_space":
        return DiskFull()
    return RotationFailed() if cause == "rotate" else WalReadOnly(cause)


class ShuttingDown(TopicsError, status=503, retryable=True, message="the server is shutting down"):
    """The server takes no more calls; another one may be up soon."""


# --- the data directory must not be opened as it is ------------------------------------------------------------------


class StartRefused(TopicsError):
    """An operator has to look; no byte was changed."""


class DataDirLocked(StartRefused):
    """Another process holds the directory."""


class MetadataLost(StartRefused):
    """No valid snapshot, and the log does not reach back to the start."""


class WalMissing(StartRefused):
    """A log file that was synced once is gone."""


class UnsupportedVersion(StartRefused):
    """Written by a newer format than this version reads."""


class ColdStoreMismatch(StartRefused):
    """The cold store is not configured, or belongs to another data directory."""


# --- on our side of the wire -----------------------------------------------------------------------------------------


class DataLoss(TopicsError):
    """Records in `gap_from..gap_to` (both lost) are gone for `reason`; raised by readers that chose to stop there. A
    reader that goes on does so from `position`, if it is known."""

    def __init__(
        self, *, topic: str, gap_from: int, gap_to: int, reason: str, position: int | str | None = None
    ) -> None:
        told = f"records {gap_from}..{gap_to} of topic {topic!r} are lost ({reason})"
        if reason == "recreated":  # the range is what the topic holds, not what it lost
            told = f"topic {topic!r} was created again or ends before the cursor (recreated): it is at seq {gap_to} now"
        elif reason == "deleted":  # nobody knows what it held
            told = (
                f"topic {topic!r} does not exist any more (deleted): the reader was at seq {gap_from}; "
                "leave it out, or create it again and start over"
            )
        super().__init__(told)
        self.topic = topic
        self.gap_from = gap_from
        self.gap_to = gap_to
        self.reason = reason
        self.position = position


class Unreachable(TopicsError, status=503, retryable=True):
    """No whole answer came. Unless `sent` is False, the server may have acted: the outcome is unknown."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class ConfigError(TopicsError):
    """A setting is wrong; raised before the disk is touched."""

    exit_status = 2
