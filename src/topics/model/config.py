"""Topic config: what a caller asks for (`ConfigPatch`), and what a topic has (`TopicConfig`).

A `TopicConfig` is always resolved: clamped, `durability` set, `durable == (durability == "fsync")`. Its field order is
the key order of responses and log bodies. Nothing is ever merged: a field left out of a patch takes its default.
Made by wire and the embedded library, kept by core, stored by the log.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

import msgspec

from topics import limits
from topics.errors import InvalidRequest
from topics.model.names import TopicName

TopicType = Literal["log", "queue"]
Discard = Literal["old", "reject"]
Durability = Literal["ephemeral", "memory", "disk", "fsync"]

DURABILITIES: tuple[Durability, ...] = ("ephemeral", "memory", "disk", "fsync")

# msgspec cannot state an upper bound beyond int64, so the u64 ceiling is tested in `__post_init__`.
U64 = Annotated[int, msgspec.Meta(ge=0, extra_json_schema={"maximum": limits.U64_MAX})]
I32 = Annotated[int, msgspec.Meta(ge=limits.I32_MIN, le=limits.I32_MAX)]


def check_u64(*values: int) -> None:
    """Raises ValueError, which msgspec reports as a validation error of the struct being decoded."""
    if max(values) > limits.U64_MAX:
        raise ValueError("an integer is beyond 64 bits")


class RetryRule(msgspec.Struct, frozen=True, kw_only=True):
    """How long a job waits for its next delivery (`docs/spec/semantics.md#sec-16-12`)."""

    base_ms: Annotated[int, msgspec.Meta(ge=1, le=limits.DAY_MS)] = 1000
    factor: Annotated[float, msgspec.Meta(ge=1, le=100)] = 2.0
    max_ms: Annotated[int, msgspec.Meta(ge=1, le=30 * limits.DAY_MS)] = 3_600_000
    jitter: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1

    def __post_init__(self) -> None:
        if self.max_ms < self.base_ms:
            raise ValueError(f"max_ms must be at least base_ms, {self.base_ms}")


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """At most so many hand-outs at once, and so many per time after that."""

    jobs: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
    per_ms: Annotated[int, msgspec.Meta(ge=1, le=limits.DAY_MS)]


class RetryIn(RetryRule, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As sent."""


class RateIn(Rate, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As sent."""


class ConfigPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A config object as sent: every field optional. None is the same as left out, where it is allowed at all."""

    type: TopicType = "log"
    ttl_ms: U64 = 0
    cap_records: U64 = 0
    cap_bytes: U64 = 0
    discard: Discard = "old"
    durable: bool = False
    durability: Durability | None = None
    priority: I32 | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: U64 = limits.IDEMPOTENCY_WINDOW_MS_DEFAULT
    dedupe_node: bool = True
    lease_ms: U64 = limits.LEASE_MS.default
    claim_jitter_ms: U64 = limits.CLAIM_JITTER_MS.default
    max_deliveries: U64 = 0
    dead_letter: TopicName | None = None
    leases_durable: bool = False
    retry: RetryIn | None = None
    serial_by: Literal["tag"] | None = None
    fair_by: Literal["tag"] | None = None
    concurrency: U64 = 0
    tag_concurrency: U64 = 0
    rate: RateIn | None = None
    tag_rate: RateIn | None = None
    paused: bool = False
    done: TopicName | None = None
    compact: Literal["tag"] | None = None
    compact_grace_ms: U64 = limits.COMPACT_GRACE_MS_DEFAULT

    def __post_init__(self) -> None:
        check_u64(self.ttl_ms, self.cap_records, self.cap_bytes, self.idempotency_window_ms, self.compact_grace_ms)
        check_u64(self.lease_ms, self.claim_jitter_ms, self.max_deliveries, self.concurrency, self.tag_concurrency)


class ConfigFields(TypedDict, total=False):
    """The fields of `ConfigPatch` as keyword arguments, so that a type checker refuses a misspelt one."""

    type: TopicType
    ttl_ms: int
    cap_records: int
    cap_bytes: int
    discard: Discard
    durable: bool
    durability: Durability | None
    priority: int | None
    auto_priority: bool
    auto_create: bool
    idempotency_window_ms: int
    dedupe_node: bool
    lease_ms: int
    claim_jitter_ms: int
    max_deliveries: int
    dead_letter: str | None
    leases_durable: bool
    retry: "RetryFields | None"
    serial_by: Literal["tag"] | None
    fair_by: Literal["tag"] | None
    concurrency: int
    tag_concurrency: int
    rate: "RateFields | None"
    tag_rate: "RateFields | None"
    paused: bool
    done: str | None
    compact: Literal["tag"] | None
    compact_grace_ms: int


class RetryFields(TypedDict, total=False):
    """The fields of `RetryRule`."""

    base_ms: int
    factor: float
    max_ms: int
    jitter: float


class RateFields(TypedDict):
    """The fields of `Rate`."""

    jobs: int
    per_ms: int


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The resolved fields of a topic. Build it with `resolve_config` or `TopicConfig.from_stored`. The first 17 are
    always shown and stored, the later ones only where they differ from their default."""

    type: TopicType = "log"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Discard = "old"
    durable: bool = False
    durability: Durability = "disk"
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = limits.IDEMPOTENCY_WINDOW_MS_DEFAULT
    dedupe_node: bool = True
    lease_ms: int = limits.LEASE_MS.default
    claim_jitter_ms: int = limits.CLAIM_JITTER_MS.default
    max_deliveries: int = 0
    dead_letter: TopicName | None = None
    leases_durable: bool = False
    retry: RetryRule | None = None
    serial_by: Literal["tag"] | None = None
    fair_by: Literal["tag"] | None = None
    concurrency: int = 0
    tag_concurrency: int = 0
    rate: Rate | None = None
    tag_rate: Rate | None = None
    paused: bool = False
    done: TopicName | None = None
    compact: Literal["tag"] | None = None
    compact_grace_ms: int = limits.COMPACT_GRACE_MS_DEFAULT

    @property
    def is_queue(self) -> bool:
        return self.type == "queue"

    @property
    def is_ephemeral(self) -> bool:
        return self.durability == "ephemeral"

    @property
    def is_fsync(self) -> bool:
        return self.durability == "fsync"

    @property
    def syncs_deletes(self) -> bool:
        """Every delete is synced before it takes effect; the ack of a job is one, but not in every class."""
        return self.is_fsync or (self.durability == "disk" and self.type == "log")

    @property
    def keeps_leases(self) -> bool:
        """Leases outlive a restart, and their events are synced; an ephemeral queue has nothing to keep."""
        return self.leases_durable and self.type == "queue" and self.durability != "ephemeral"

    @property
    def logs_leases(self) -> bool:
        """Lease events are logged, so that counts and delays outlive a restart."""
        return self.type == "queue" and self.durability != "ephemeral"

    def to_dict(self) -> dict[str, Any]:
        """Plain values in canonical key order, for log bodies and responses."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        for name, default in SHOWN_IF_SET.items():
            if fields[name] == default:
                del fields[name]
        return fields

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> "TopicConfig":
        """From a log or snapshot body; keys of a newer version are ignored. Raises msgspec.ValidationError."""
        return msgspec.convert(stored, cls)


SHOWN_IF_SET: dict[str, Any] = {
    "retry": None,
    "serial_by": None,
    "fair_by": None,
    "concurrency": 0,
    "tag_concurrency": 0,
    "rate": None,
    "tag_rate": None,
    "paused": False,
    "done": None,
    "compact": None,
    "compact_grace_ms": limits.COMPACT_GRACE_MS_DEFAULT,
}
"""Fields that answers and the log have only where they differ from these defaults."""


def resolve_config(patch: ConfigPatch) -> TopicConfig:
    """Clamps what is clamped and settles the class. Names (`dead_letter`) are checked by the lifecycle rules."""
    durability: Durability = patch.durability or ("fsync" if patch.durable else "disk")
    fields = msgspec.structs.asdict(patch)
    fields["durability"] = durability
    fields["durable"] = durability == "fsync"
    fields["lease_ms"] = limits.LEASE_MS(patch.lease_ms)
    fields["claim_jitter_ms"] = limits.CLAIM_JITTER_MS(patch.claim_jitter_ms)
    if patch.retry is not None:
        fields["retry"] = RetryRule(**msgspec.structs.asdict(patch.retry))
    for name in ("rate", "tag_rate"):
        if fields[name] is not None:
            fields[name] = Rate(**msgspec.structs.asdict(fields[name]))
    return TopicConfig(**fields)


def patch_from(fields: Mapping[str, Any]) -> ConfigPatch:
    """A patch from plain Python values, with the same type rules as JSON; unknown names are refused."""
    unknown = [name for name in fields if name not in ConfigPatch.__struct_fields__]
    if unknown:
        raise InvalidRequest(f"a topic has no setting {unknown[0]!r}")
    try:
        return msgspec.convert(fields, ConfigPatch)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"bad topic setting: {error}") from None


DEFAULT_CONFIG = TopicConfig()


def config_beside(queue: TopicConfig) -> TopicConfig:
    """Of a topic that takes what leaves a queue, if nobody has made it: the defaults, and no less durable."""
    return TopicConfig(durability="fsync") if queue.is_fsync else DEFAULT_CONFIG
