"""Request bodies of the queue calls, and lease ids.

As in `requests`: types, ranges and clamps are settled by decoding; what is checked later is a method. Used by api and,
for encoding, by the client.
"""

import re
from typing import Annotated

import msgspec
from msgspec.structs import force_setattr

from topics import limits
from topics.errors import BatchTooLarge, InvalidRequest
from topics.model.config import U64, check_u64
from topics.model.names import TagMatch, TopicName, parse_match
from topics.model.record import NULL
from topics.model.results import lease_text
from topics.model.values import ProgressReport
from topics.wire.incoming.json import BodyDecoder
from topics.wire.incoming.requests import U32, Predicate

Fences = list[int | None] | None
"""One entry per seq: the lease id it must have now, or None for any; no list at all: no fencing."""

_LEASE_ID = re.compile("lease_([0-9a-fA-F]{1,16})").fullmatch
NO_SUCH_LEASE = 0  # ids start at 1, so a token in a spelling we never hand out fits no lease


def parse_lease(text: str) -> int | None:
    """None for the empty token. A token that looks right but is not spelled as we spell it fits no lease."""
    if not text:
        return None
    found = _LEASE_ID(text)
    if found is None:
        raise InvalidRequest("a lease id looks like lease_1f")
    lease_id = int(found[1], 16)
    return lease_id if lease_text(lease_id) == text else NO_SUCH_LEASE


def check_fences(node: str, seqs: list[int], lease_ids: list[str]) -> Fences:
    """In the contract's order: tokens, node, number of seqs, number of tokens."""
    fences = list(map(parse_lease, lease_ids))
    if not node:
        raise InvalidRequest("node must not be empty")
    if len(seqs) > limits.SEQS_PER_CALL_MAX:
        raise BatchTooLarge.of_seqs(len(seqs), max=limits.SEQS_PER_CALL_MAX)
    if fences and len(fences) != len(seqs):
        raise InvalidRequest(f"{len(fences)} lease ids were given for {len(seqs)} seqs")
    return fences or None


def check_worker(node: str) -> bytes:
    """The node of a claim or a work stream."""
    encoded = node.encode()
    if not 0 < len(encoded) <= limits.NODE_BYTES_MAX:
        raise InvalidRequest(f"node must have 1 to {limits.NODE_BYTES_MAX} bytes")
    return encoded


class ClaimRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: str
    max: U32 = limits.CLAIM_MAX.default
    lease_ms: U64 | None = None
    wait_ms: U64 = limits.CLAIM_WAIT_MS.default

    def __post_init__(self) -> None:
        check_u64(self.lease_ms or 0, self.wait_ms)
        force_setattr(self, "wait_ms", limits.CLAIM_WAIT_MS(self.wait_ms))
        force_setattr(self, "max", limits.CLAIM_MAX(self.max))
        if self.lease_ms is not None:
            force_setattr(self, "lease_ms", limits.LEASE_MS(self.lease_ms))

    def check_node(self) -> bytes:
        return check_worker(self.node)


class AckRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: str
    seqs: list[U64]
    lease_ids: list[str] = []
    results: list[msgspec.Raw] = []

    def __post_init__(self) -> None:
        check_u64(0, *self.seqs)

    def check(self) -> Fences:
        fences = check_fences(self.node, self.seqs, self.lease_ids)
        if self.results and len(self.results) != len(self.seqs):
            raise InvalidRequest(f"{len(self.results)} results were given for {len(self.seqs)} seqs")
        for at, result in enumerate(self.results):
            if len(result) > limits.RESULT_BYTES_MAX:
                raise InvalidRequest(f"results[{at}]: a result has at most {limits.RESULT_BYTES_MAX} bytes")
        return fences

    def result_texts(self) -> list[bytes | None]:
        """JSON texts; null is the same as none."""
        return [None if result == NULL else bytes(result) for result in self.results]


class NackRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: str
    seqs: list[U64]
    lease_ids: list[str] = []
    delay_ms: U64 | None = None
    error: str | None = None
    final: bool = False

    def __post_init__(self) -> None:
        check_u64(self.delay_ms or 0, *self.seqs)
        if self.delay_ms is not None:
            force_setattr(self, "delay_ms", limits.NACK_DELAY_MS(self.delay_ms))

    def check(self) -> Fences:
        fences = check_fences(self.node, self.seqs, self.lease_ids)
        if self.error is not None and len(self.error.encode()) > limits.ERROR_BYTES_MAX:
            raise InvalidRequest(f"error has at most {limits.ERROR_BYTES_MAX} bytes")
        return fences


class ExtendRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: str
    seqs: list[U64]
    lease_ms: U64
    lease_ids: list[str] = []
    progress: list[ProgressReport | None] = []

    def __post_init__(self) -> None:
        check_u64(self.lease_ms, *self.seqs)
        force_setattr(self, "lease_ms", limits.LEASE_MS(self.lease_ms))

    def check(self) -> Fences:
        fences = check_fences(self.node, self.seqs, self.lease_ids)
        if self.progress and len(self.progress) != len(self.seqs):
            raise InvalidRequest(f"{len(self.progress)} entries of progress were given for {len(self.seqs)} seqs")
        for at, report in enumerate(self.progress):
            if report is not None and len((report.text or "").encode()) > limits.PROGRESS_BYTES_MAX:
                raise InvalidRequest(f"progress[{at}]: text has at most {limits.PROGRESS_BYTES_MAX} bytes")
        return fences


class SeqsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cancel and retry: jobs by seq, whoever holds them."""

    seqs: list[U64]

    def __post_init__(self) -> None:
        check_u64(0, *self.seqs)


class MoveRequest(SeqsRequest, frozen=True, forbid_unknown_fields=True):
    to: TopicName


class RedriveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    to: TopicName | None = None
    match: Predicate = None
    error: str | None = None
    from_ts: U64 = 0
    to_ts: U64 | None = None
    from_seq: U64 = 0
    limit: U32 = limits.REDRIVE_LIMIT.default
    rate: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] | None = None
    delay_ms: Annotated[int, msgspec.Meta(ge=0, le=limits.JOB_DELAY_MS_MAX)] = 0
    dry_run: bool = False

    def __post_init__(self) -> None:
        check_u64(self.from_ts, self.to_ts or 0, self.from_seq)
        force_setattr(self, "limit", limits.REDRIVE_LIMIT(self.limit))

    def tag_match(self) -> TagMatch | None:
        return None if self.match is None else parse_match(self.match)


decode_seqs = BodyDecoder[SeqsRequest](SeqsRequest)
decode_move = BodyDecoder[MoveRequest](MoveRequest)
decode_redrive = BodyDecoder[RedriveRequest](RedriveRequest)
decode_claim = BodyDecoder[ClaimRequest](ClaimRequest)
decode_ack = BodyDecoder[AckRequest](AckRequest)
decode_nack = BodyDecoder[NackRequest](NackRequest)
decode_extend = BodyDecoder[ExtendRequest](ExtendRequest)
