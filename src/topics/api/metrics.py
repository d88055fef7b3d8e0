"""Metrics: what the process counts, as Prometheus text or as one JSON object (`docs/spec/http-api.md#sec-20-3`).

The order of the first 29 families is part of the contract; further ones follow. Per-topic families stop at 1000 topics.
While recovery runs there is no kernel yet, and everything it would count is zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Literal

import msgspec

from topics.api.app import RequestCall
from topics.api.live.live import Live
from topics.core.topic import TopicLog
from topics.engine.ticket import chain
from topics.formats.kernel_choice import KERNEL
from topics.limits import METRICS_TOPICS_MAX
from topics.model.config import DURABILITIES
from topics.model.results import QueueCounters
from topics.net.messages import Response
from topics.runtime.kernel import Kernel
from topics.storage.wal.group import SYNC_BUCKETS_US, WalStats
from topics.wire.incoming.request_head import wants_json

Kind = Literal["gauge", "counter", "histogram"]
Sample = tuple[str, str, float]
"""Suffix of the name, labels in braces or nothing, value."""

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Family(msgspec.Struct, frozen=True):
    name: str
    kind: Kind
    help: str
    samples: list[Sample]


def gauge(name: str, help: str, value: float) -> Family:
    return Family(name, "gauge", help, [("", "", value)])


def counter(name: str, help: str, value: float) -> Family:
    return Family(name, "counter", help, [("", "", value)])


def labelled(name: str, kind: Kind, help: str, label: str, values: Iterable[tuple[str, float]]) -> Family:
    return Family(
        name, kind, help, [("", f'{{{label}="{text.translate(_ESCAPES)}"}}', value) for text, value in values]
    )


def histogram(name: str, help: str, *, bounds: Iterable[int], counts: Iterable[int], total: float) -> Family:
    """`counts` are per bucket, the last one for everything above the bounds; buckets are shown cumulated."""
    samples: list[Sample] = []
    seen = 0
    for bound, count in zip([*map(str, bounds), "+Inf"], counts, strict=True):
        seen += count
        samples.append(("_bucket", f'{{le="{bound}"}}', seen))
    return Family(name, "histogram", help, [*samples, ("_sum", "", total), ("_count", "", seen)])


def exposition(families: Iterable[Family]) -> bytes:
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines.extend(f"{family.name}{suffix}{labels} {_number(value)}" for suffix, labels, value in family.samples)
    return ("\n".join(lines) + "\n").encode()


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


TEXT = b"text/plain; version=0.0.4"


class Metrics:
    def __init__(self, *, uptime_ms: Callable[[], int], progress: Callable[[], float | None]) -> None:
        self._uptime_ms = uptime_ms
        self._progress = progress
        self.kernel: Kernel | None = None  # until recovery is over
        self.live: Live | None = None

    def metrics(self, call: RequestCall) -> None:
        """Counts are those of this moment (`docs/spec/semantics.md#sec-3-5`): what TTL and byte caps take goes first.
        Floors are shown as far as they are logged."""
        if self.kernel is None:
            self._answer(call)
            return
        floor_log, topics = self.kernel.engine.floor_log, self._topics()
        mortal = [topic for topic in topics if topic.config.ttl_ms or topic.config.cap_bytes]
        logged = chain(floor_log.log_soon(mortal), lambda _: floor_log.log_all(topics[:METRICS_TOPICS_MAX]))
        call.when(logged, lambda _: self._answer(call))

    def _answer(self, call: RequestCall) -> None:
        if wants_json(call.request.header(b"accept")):
            call.reply(200, msgspec.json.encode(self._json()))
        else:
            permits = (lambda _: True) if call.key is None else call.key.permits_name
            call.respond(Response(200, exposition(self._families(permits)), TEXT))

    # --- sources --------------------------------------------------------------------------------------------------

    def _topics(self) -> list[TopicLog]:
        return [] if self.kernel is None else list(self.kernel.engine.state.topics.values())

    def _wal(self) -> WalStats:
        """All groups added up."""
        total = WalStats()
        for group in () if self.kernel is None else self.kernel.store.groups:
            stats = group.stats
            for name in ("frames", "client_frames", "batches", "bytes_written", "rotations", "syncs", "slow_writes"):
                setattr(total, name, getattr(total, name) + getattr(stats, name))
            total.sync_seconds += stats.sync_seconds
            total.sync_buckets = [a + b for a, b in zip(total.sync_buckets, stats.sync_buckets, strict=True)]
        return total

    def _read_only(self) -> int:
        return int(self.kernel is not None and bool(self.kernel.commit.read_only_causes()))

    # --- text -----------------------------------------------------------------------------------------------------

    def _families(self, permits: Callable[[str], bool]) -> list[Family]:
        """Sums are over all topics; topics are named only to whom `permits` them."""
        topics = self._topics()
        families = [
            gauge("topics_topics", "number of topics", len(topics)),
            labelled(
                "topics_topics_by_class",
                "gauge",
                "topics by durability class",
                "class",
                list(_by_class(topics).items()),
            ),
            gauge("topics_routers", "number of routers", self._routers()),
            gauge("topics_records_live", "live records, all topics", sum(t.count for t in topics)),
            gauge("topics_bytes_live", "live bytes, all topics", sum(t.bytes for t in topics)),
            *self._topic_families([topic for topic in topics if permits(topic.name)]),
            *self._process_families(topics),
            *self._wal_families(),
            counter(
                "topics_queue_lost_in_flight_total",
                "leased jobs that a cap or TTL took",
                0 if self.kernel is None else self.kernel.engine.queues.lost_in_flight(),
            ),
        ]
        families.append(labelled("topics_kernel", "gauge", "codecs that run", "kernel", [(KERNEL, 1)]))
        if self.live is not None:
            families += _live_families(self.live)
        if self.kernel is not None:
            families += _tier_families(self.kernel)
        return families

    def _routers(self) -> int:
        return 0 if self.kernel is None else len(self.kernel.engine.state.routers)

    def _earliest(self, topic: TopicLog) -> int:
        return topic.earliest_seq if self.kernel is None else self.kernel.engine.floor_log.durable_earliest(topic)

    def _topic_families(self, topics: list[TopicLog]) -> list[Family]:
        shown = list(islice(topics, METRICS_TOPICS_MAX))
        queues = [(t.name, counters) for t in shown if (counters := self._counters(t)) is not None]
        by = "topic"
        return [
            labelled("topics_topic_head_seq", "gauge", "highest seq", by, [(t.name, t.head) for t in shown]),
            labelled(
                "topics_topic_earliest_seq",
                "gauge",
                "first live seq",
                by,
                [(t.name, self._earliest(t)) for t in shown],
            ),
            labelled("topics_topic_records_live", "gauge", "live records", by, [(t.name, t.count) for t in shown]),
            labelled("topics_topic_bytes_live", "gauge", "live bytes", by, [(t.name, t.bytes) for t in shown]),
            labelled("topics_topic_queue_ready", "gauge", "ready jobs", by, [(n, c.ready) for n, c in queues]),
            labelled("topics_topic_queue_in_flight", "gauge", "leased jobs", by, [(n, c.in_flight) for n, c in queues]),
            gauge(
                "topics_topic_metrics_truncated",
                "1 if per-topic families stop before the last topic",
                int(len(topics) > METRICS_TOPICS_MAX),
            ),
        ]

    def _counters(self, topic: TopicLog) -> QueueCounters | None:
        return None if self.kernel is None else self.kernel.engine.queues.counters(topic)

    def _leases(self, topics: list[TopicLog]) -> int:
        """Unexpired leases of all queues."""
        return sum(counters.in_flight for topic in topics if (counters := self._counters(topic)) is not None)

    def _streams(self) -> int:
        return 0 if self.live is None else len(self.live.streams)

    def _watch_sessions(self) -> int:
        return 0 if self.live is None else len(self.live.sessions)

    def _ready(self) -> bool:
        """As the readiness probe says."""
        return self._progress() is None and (self.kernel is None or not self.kernel.commit.read_only_causes())

    def _process_families(self, topics: list[TopicLog]) -> list[Family]:
        progress = self._progress()
        queues = sum(t.config.is_queue for t in topics)
        return [
            gauge("topics_queue_topics", "queue topics", queues),
            gauge("topics_queue_leases_in_flight", "unexpired leases", self._leases(topics)),
            gauge("topics_sse_connections", "open streams and sockets", self._streams()),
            gauge("topics_watch_sessions", "watch sessions", self._watch_sessions()),
            gauge("topics_ready", "1 while everything is served", int(self._ready())),
            gauge("topics_recovery_progress", "share of the log replayed", 1 if progress is None else progress),
            counter("topics_uptime_ms", "milliseconds since start", self._uptime_ms()),
        ]

    def _wal_families(self) -> list[Family]:
        wal, commit = self._wal(), None if self.kernel is None else self.kernel.commit
        depth, peak, full = (0, 0, 0) if commit is None else (commit.depth(), commit.depth_peak, commit.full_total)
        return [
            counter("topics_wal_frames_total", "frames logged for clients", wal.client_frames),
            counter("topics_wal_batches_total", "group commits", wal.batches),
            counter("topics_wal_fsyncs_total", "syncs", wal.syncs),
            counter("topics_wal_bytes_written_total", "bytes written to the log", wal.bytes_written),
            counter("topics_wal_rotations_total", "log file rotations", wal.rotations),
            gauge("topics_wal_queue_depth", "submissions accepted and not yet committed", depth),
            gauge("topics_wal_queue_depth_peak", "highest depth since start", peak),
            counter("topics_wal_submit_full_total", "submissions refused for a full queue", full),
            gauge("topics_wal_read_only", "1 if a log group takes no writes", self._read_only()),
            histogram(
                "topics_wal_fsync_latency_us",
                "sync latency",
                bounds=SYNC_BUCKETS_US,
                counts=wal.sync_buckets,
                total=round(wal.sync_seconds * 1e6),
            ),
            *self._storage_families(wal),
        ]

    def _storage_families(self, wal: WalStats) -> list[Family]:
        """Beyond the contract's table: `docs/spec/storage.md#sec-16`."""
        kernel = self.kernel
        if kernel is None:
            return []
        store = kernel.store
        causes = [
            (store.groups[index].key or "flat", cause) for index, cause in kernel.commit.read_only_causes().items()
        ]
        return [
            Family(
                "topics_wal_group_read_only",
                "gauge",
                "log groups that take no writes, and why",
                [("", f'{{group="{group}",cause="{cause}"}}', 1) for group, cause in causes],
            ),
            gauge(
                "topics_wal_at_risk_frames",
                "acked frames whose sync failed",
                sum(group.at_risk_frames for group in store.groups),
            ),
            labelled(
                "topics_wal_commit_failures_total",
                "counter",
                "failed commits",
                "op",
                sorted(kernel.commit.failures_total.items()),
            ),
            counter("topics_wal_slow_writes_total", "writes over 5 ms in the loop", wal.slow_writes),
            counter("topics_wal_truncated_bytes_total", "log bytes cut off at start", kernel.recovered.truncated_bytes),
            counter("topics_wal_damage_total", "damaged log groups found at start", kernel.recovered.damage),
            counter("topics_lost_seqs_total", "seqs announced as lost at start", kernel.recovered.lost_seqs),
            counter("topics_checkpoints_total", "checkpoints", kernel.checkpointer.runs_total),
            counter("topics_checkpoint_failures_total", "abandoned checkpoints", kernel.checkpointer.failures_total),
            counter("topics_snapshots_total", "snapshots", kernel.snapshotter.total),
            counter("topics_snapshot_failures_total", "failed snapshots", kernel.snapshotter.failures_total),
            *_segment_families(kernel),
        ]

    # --- JSON -----------------------------------------------------------------------------------------------------

    def _json(self) -> dict[str, object]:
        topics, wal, progress = self._topics(), self._wal(), self._progress()
        commit = None if self.kernel is None else self.kernel.commit
        classes = {f"topics_{name}": count for name, count in _by_class(topics).items()}
        return {
            "topics": len(topics),
            **classes,
            "routers": self._routers(),
            "records_live": sum(t.count for t in topics),
            "bytes_live": sum(t.bytes for t in topics),
            "queue_topics": sum(t.config.is_queue for t in topics),
            "queue_leases_in_flight": self._leases(topics),
            "sse_connections": self._streams(),
            "watch_sessions": self._watch_sessions(),
            "ready": self._ready(),
            "replay_progress": 1.0 if progress is None else progress,
            "uptime_ms": self._uptime_ms(),
            "wal": {
                "fsyncs": wal.syncs,
                "frames": wal.client_frames,
                "batches": wal.batches,
                "bytes_written": wal.bytes_written,
                "rotations": wal.rotations,
                "queue_depth": 0 if commit is None else commit.depth(),
                "queue_depth_peak": 0 if commit is None else commit.depth_peak,
                "submit_full_total": 0 if commit is None else commit.full_total,
                "read_only": self._read_only(),
                "fsync_count": wal.syncs,
                "fsync_micros_total": round(wal.sync_seconds * 1e6),
            },
        }


def _by_class(topics: list[TopicLog]) -> dict[str, int]:
    counted = Counter(topic.config.durability for topic in topics)
    return {name: counted[name] for name in DURABILITIES}


def _segment_families(kernel: Kernel) -> list[Family]:
    counters = kernel.store.env.counters
    sealed = [segment for topic in kernel.engine.state.by_id.values() for segment in topic.sealed]
    tiers = ("hot", "cold")
    return [
        labelled(
            "topics_segments",
            "gauge",
            "sealed segments",
            "tier",
            [(tier, sum(s.view.tier == tier for s in sealed)) for tier in tiers],
        ),
        labelled(
            "topics_segment_bytes",
            "gauge",
            "bytes of sealed segments",
            "tier",
            [(tier, sum(s.view.data_len for s in sealed if s.view.tier == tier)) for tier in tiers],
        ),
        counter("topics_segment_idx_rebuilt_total", "indexes rebuilt", counters.idx_rebuilt),
        counter("topics_segments_dropped_total", "segments dropped", counters.dropped),
        counter("topics_segments_rewritten_total", "segments rewritten", counters.rewritten),
        counter("topics_segments_relocated_total", "segments moved to the cold tier", counters.relocated),
        counter("topics_delete_flips_total", "delete flags set", counters.flips),
        counter("topics_delete_flip_failures_total", "delete flags not set", counters.flip_failures),
        counter("topics_cold_reads_total", "ranges read from the cold store", counters.cold_reads),
    ]


def _live_families(live: Live) -> list[Family]:
    """Of streams and sockets; beyond the contract's table."""
    delivery, streams = live.delivery, live.streams
    return [
        gauge("topics_delivery_pressure", "how short of time the process is, 0 to 1", delivery.pressure),
        gauge("topics_delivery_stage", "highest stage of the ladder that holds", delivery.stage),
        gauge("topics_delivery_ready", "topics that wait for a worker", delivery.depth()),
        counter("topics_delivery_services_total", "services of topics", delivery.services_total),
        counter("topics_streams_shed_total", "slow streams whose frames were dropped", streams.shed_total),
        counter("topics_streams_too_slow_total", "streams cut off for being stuck", streams.too_slow_total),
    ]


def _tier_families(kernel: Kernel) -> list[Family]:
    """What was moved to the cold store, what failed, and whether the store answers. Nothing without a cold store."""
    tiers, counters = kernel.tiers, kernel.store.env.counters
    cold = tiers.cold
    if cold is None:
        return []
    return [
        gauge("topics_cold_store_up", "1 if the cold store is ours and answered last", int(cold.answers)),
        counter("topics_relocation_bytes_total", "bytes moved to cold", counters.relocated_bytes),
        counter("topics_relocation_failures_total", "moves that failed", counters.relocation_failures),
        gauge("topics_relocation_last_success_ms", "time of the last move, 0: none", tiers.last_success_ms),
        gauge("topics_relocation_waiting", "segments waiting for the cold pool", tiers.waiting),
    ]
