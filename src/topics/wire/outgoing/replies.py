"""Reply bodies as bytes. The hot ones are built by formatting, the others by encoding a result struct.

Every success but the probes and the metrics ends in a `performance` object, whose builders are here too; records come
in rendered (`records`). Topic names of existing topics are plain ASCII by their grammar and are quoted as they are.
Called by api at the end of a request.

Reported errors: from the wire back into the tree of `topics.errors`. Used by clients.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from topics.errors import RETRY_AFTER_S, Detail, Internal, InvalidRequest, RequestRefused, TopicsError
from topics.model.config import TopicConfig
from topics.model.results import Appended, EnteredJobs, Tombstone

_encode = msgspec.json.Encoder().encode
_BOOLS = (b"false", b"true")
_LEAST_MS = 0.001  # a wait that happened is shown as more than nothing


# --- performance -----------------------------------------------------------------------------------------------------


def performance(server_total_ms: float, *, throttle_wait_ms: float = 0.0) -> bytes:
    return b'{"server_total_ms":%.3f%b}' % (server_total_ms, _throttled(throttle_wait_ms))


def _throttled(wait_ms: float) -> bytes:
    """Only a request that was parked shows how long."""
    return b',"throttle_wait_ms":%.3f' % wait_ms if wait_ms else b""


def append_performance(server_total_ms: float, done: Appended, *, throttle_wait_ms: float = 0.0) -> bytes:
    """A write that was found done already shows no log times."""
    if done.deduped:
        return performance(server_total_ms)
    spent = _append_performance(server_total_ms, done.append_ms, done.sync_ms)
    return spent[:-1] + _throttled(throttle_wait_ms) + b"}" if throttle_wait_ms else spent


def _append_performance(server_total_ms: float, append_ms: float, sync_ms: float) -> bytes:
    return b'{"server_total_ms":%.3f,"wal_append_ms":%.3f,"fsync_ms":%.3f}' % (server_total_ms, append_ms, sync_ms)


def diff_performance(server_total_ms: float, *, records_scanned: int, cold_segments_read: int = 0) -> bytes:
    cold = b',"cold_segments_read":%d' % cold_segments_read if cold_segments_read else b""
    return b'{"server_total_ms":%.3f,"records_scanned":%d%b}' % (server_total_ms, records_scanned, cold)


def ack_performance(server_total_ms: float, *, fsync_ms: float) -> bytes:
    if fsync_ms <= 0:
        return performance(server_total_ms)
    return b'{"server_total_ms":%.3f,"fsync_ms":%.3f}' % (server_total_ms, max(fsync_ms, _LEAST_MS))


# --- bodies ----------------------------------------------------------------------------------------------------------


def struct_reply(result: msgspec.Struct, performance: bytes, *, hidden: Sequence[str] = ()) -> bytes:
    """Any result struct, its performance object last. `hidden`: the fields of which the key may not see all."""
    left_out = b',"hidden":%b' % _encode(hidden) if hidden else b""
    config = getattr(result, "config", None)
    if isinstance(config, TopicConfig):
        body = _encode({**msgspec.to_builtins(result), "config": config.to_dict()})
    else:
        body = _encode(result)
    return b'%b%b,"performance":%b}' % (body[:-1], left_out, performance)


def append_reply(topic: str, done: Appended, *, return_seqs: bool, performance: bytes) -> bytes:
    return b'{"topic":"%b",%b,"performance":%b}' % (
        topic.encode(),
        append_outcome(done, seqs=seqs_field(done) if return_seqs else b""),
        performance,
    )


def append_replies(
    topic: bytes,
    first_seq: int,
    counts: Sequence[int],
    *,
    epoch: int,
    return_seqs: bool,
    server_total_ms: float,
    append_ms: float,
    sync_ms: float,
) -> list[bytes]:
    """`append_reply` for each of several writes, of so many records, that went together. None of them was deduplicated,
    the first of its topic, or kept waiting."""
    performance = _append_performance(server_total_ms, append_ms, sync_ms)
    if counts.count(1) == len(counts):  # they differ in nothing but their seqs
        seqs = b',"seqs":[#]' if return_seqs else b""
        form = (
            b'{"topic":"%b","first_seq":#,"last_seq":#%b,"head_seq":#,"count":1,"created":false,"deduped":false,'
            b'"position":"#-e%x","performance":%b}'
        ) % (topic, seqs, epoch, performance)
        return [form.replace(b"#", b"%d" % seq) for seq in range(first_seq, first_seq + len(counts))]
    bodies = []
    for count in counts:
        done = Appended(first_seq, count, first_seq + count - 1, epoch)
        outcome = append_outcome(done, seqs=seqs_field(done) if return_seqs else b"")
        bodies.append(b'{"topic":"%b",%b,"performance":%b}' % (topic, outcome, performance))
        first_seq += count
    return bodies


def append_outcome(done: Appended, *, seqs: bytes) -> bytes:
    """The part of a write's answer that HTTP and WebSocket share; `seqs` is a field with its comma, or nothing."""
    if done.entered is not None:
        return _entered_outcome(done, done.entered, seqs=seqs)
    last_seq = done.first_seq + done.count - 1
    return b'"first_seq":%d,"last_seq":%d%b,"head_seq":%d,"count":%d,"created":%b,"deduped":%b,"position":"%d-e%x"' % (
        done.first_seq,
        last_seq,
        seqs,
        done.head,
        done.count,
        _BOOLS[done.created],
        _BOOLS[done.deduped],
        last_seq,
        done.epoch,
    )


def _entered_outcome(done: Appended, entered: EnteredJobs, *, seqs: bytes) -> bytes:
    """Of a write with unique keys, which may have appended fewer records, or none."""
    first_seq, last_seq = (done.first_seq, done.last_seq) if done.count else (min(entered.seqs), max(entered.seqs))
    plain = msgspec.structs.replace(done, first_seq=first_seq, count=last_seq - first_seq + 1, entered=None)
    body = append_outcome(plain, seqs=seqs).replace(b',"count":%d,' % plain.count, b',"count":%d,' % done.count)
    kept = b',"kept":' + _encode(entered.kept) if entered.kept else b""
    return body + kept + (b',"replaced":' + _encode(entered.replaced) if entered.replaced else b"")


def seqs_field(done: Appended) -> bytes:
    if done.entered is not None:
        return b',"seqs":' + _encode(done.entered.seqs)
    if done.count == 1:
        return b',"seqs":[%d]' % done.first_seq
    return b',"seqs":' + seq_list(done.first_seq, done.last_seq)


def seq_list(first_seq: int, last_seq: int) -> bytes:
    return b"[%d]" % first_seq if first_seq == last_seq else _encode(list(range(first_seq, last_seq + 1)))


def diff_reply(
    topic: str,
    records: bytes,
    *,
    next_from_seq: int,
    head_seq: int,
    earliest_seq: int,
    tombstone: Tombstone | None,
    epoch: int,
    performance: bytes,
) -> bytes:
    """`records` are rendered and joined by commas. `caught_up` and `lag` follow from the cursor and the head; `epoch`
    is that of the cursor."""
    return (
        b'{"topic":"%b","records":[%b],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,"caught_up":%b,'
        b'"tombstone":%b,"lag":%d,"next":"%d-e%x","performance":%b}'
    ) % (
        topic.encode(),
        records,
        next_from_seq,
        head_seq,
        earliest_seq,
        _BOOLS[next_from_seq == head_seq],
        b"null" if tombstone is None else _encode(tombstone),
        head_seq - next_from_seq,
        next_from_seq,
        epoch,
        performance,
    )


def latest_reply(
    topic: str, records: bytes, *, next_tag: str | None, head_seq: int, epoch: int, performance: bytes
) -> bytes:
    """A page of a table; `records` are rendered and joined by commas."""
    return b'{"topic":"%b","records":[%b],"next":%b,"head_seq":%d,"position":"%d-e%x","performance":%b}' % (
        topic.encode(),
        records,
        _encode(next_tag),
        head_seq,
        head_seq,
        epoch,
        performance,
    )


def record_reply(topic: str, record: bytes, *, seq: int, epoch: int, performance: bytes) -> bytes:
    """One record, rendered."""
    return b'{"topic":"%b","record":%b,"position":"%d-e%x","performance":%b}' % (
        topic.encode(),
        record,
        seq,
        epoch,
        performance,
    )


def claim_reply(topic: str, jobs: Sequence[bytes], *, ready: int, performance: bytes) -> bytes:
    """`jobs` are rendered entries of `claimed`."""
    return b'{"topic":"%b","claimed":[%b],"count":%d,"ready":%d,"performance":%b}' % (
        topic.encode(),
        b",".join(jobs),
        len(jobs),
        ready,
        performance,
    )


def error_body(error: TopicsError) -> bytes:
    return _encode(error.envelope())


# --- probes ----------------------------------------------------------------------------------------------------------


def health_reply(version: str, *, uptime_ms: int, problems: Sequence[str] = ()) -> bytes:
    """The process lives, whatever is wrong with it; `problems` are sentences, left out when there are none."""
    shown = {"problems": problems} if problems else {}
    return _encode({"status": "ok", "version": version, "uptime_ms": uptime_ms, **shown})


def ready_reply(*, topics: int) -> bytes:
    return b'{"status":"ready","wal_replay_complete":true,"topics":%d}' % topics


_BY_CODE: dict[str, type[TopicsError]] = {
    cls.code: cls for root in (RequestRefused, TopicsError) for cls in root.__subclasses__() if "code" in vars(cls)
} | {"invalid_request": InvalidRequest, "internal": Internal}


def error_from_wire(*, code: str, status: int, message: str, detail: Detail | None = None) -> TopicsError:
    """The error a server reported. A code we do not know keeps its code and status, and is retryable on 429 and 503."""
    cls = _BY_CODE.get(code, TopicsError)
    error = cls.__new__(cls)
    TopicsError.__init__(error, message, detail=detail)
    if cls is TopicsError:
        after_s = RETRY_AFTER_S if status in (429, 503) else None
        vars(error).update(code=code, status=status, retryable=after_s is not None, retry_after_s=after_s)
    return error
