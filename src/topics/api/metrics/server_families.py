"""Server families: what is counted of the log, of storage, of delivery and of the process.

The order of the first is part of the contract; further ones follow (`docs/spec/http-api.md#sec-20-3`)."""

from __future__ import annotations

import platform

import topics
from topics.api.live.live import Live
from topics.api.metrics.exposition import Family, counter, gauge, histogram, label, labelled
from topics.formats.kernel_choice import KERNEL
from topics.model.latency import LATENCY_BOUNDS_S
from topics.runtime.kernel import Kernel
from topics.runtime.process_stats import DiskSpace, ProcessStats
from topics.storage.wal.group import SYNC_BUCKETS_US, WalStats


def wal_totals(kernel: Kernel | None) -> WalStats:
    """All groups added up."""
    total = WalStats()
    for group in () if kernel is None else kernel.store.groups:
        stats = group.stats
        for name in ("frames", "client_frames", "batches", "bytes_written", "rotations", "syncs", "slow_writes"):
            setattr(total, name, getattr(total, name) + getattr(stats, name))
        total.sync_seconds += stats.sync_seconds
        total.sync_buckets = [a + b for a, b in zip(total.sync_buckets, stats.sync_buckets, strict=True)]
    return total


def is_read_only(kernel: Kernel | None) -> bool:
    return kernel is not None and bool(kernel.commit.read_only_causes())


def wal_families(kernel: Kernel | None) -> list[Family]:
    wal, commit = wal_totals(kernel), None if kernel is None else kernel.commit
    depth, peak, full = (0, 0, 0) if commit is None else (commit.depth(), commit.depth_peak, commit.full_total)
    lost = 0 if kernel is None else kernel.engine.queues.lost_in_flight()
    return [
        counter("topics_wal_frames_total", "frames logged for clients", wal.client_frames),
        counter("topics_wal_batches_total", "group commits", wal.batches),
        counter("topics_wal_fsyncs_total", "syncs", wal.syncs),
        counter("topics_wal_bytes_written_total", "bytes written to the log", wal.bytes_written),
        counter("topics_wal_rotations_total", "log file rotations", wal.rotations),
        gauge("topics_wal_queue_depth", "submissions accepted and not yet committed", depth),
        gauge("topics_wal_queue_depth_peak", "highest depth since start", peak),
        counter("topics_wal_submit_full_total", "submissions refused for a full queue", full),
        gauge("topics_wal_read_only", "1 if a log group takes no writes", int(is_read_only(kernel))),
        histogram(
            "topics_wal_fsync_latency_us",
            "deprecated, use topics_wal_fsync_duration_seconds",
            bounds=SYNC_BUCKETS_US,
            counts=wal.sync_buckets,
            total=round(wal.sync_seconds * 1e6),
        ),
        *_storage_families(kernel, wal),
        *_compaction_families(kernel),
        counter("topics_queue_lost_in_flight_total", "leased jobs that a cap or TTL took", lost),
        labelled("topics_kernel", "gauge", "deprecated, use topics_build_info", "kernel", [(KERNEL, 1)]),
        histogram(
            "topics_wal_fsync_duration_seconds",
            "sync latency",
            bounds=[bound / 1e6 for bound in SYNC_BUCKETS_US],
            counts=wal.sync_buckets,
            total=round(wal.sync_seconds, 6),
        ),
    ]


def _storage_families(kernel: Kernel | None, wal: WalStats) -> list[Family]:
    """Beyond the contract's table: `docs/spec/storage.md#sec-16`."""
    if kernel is None:
        return []
    store = kernel.store
    read_only = Family("topics_wal_group_read_only", "gauge", "log groups that take no writes, and why")
    for index, cause in kernel.commit.read_only_causes().items():
        read_only.add(label(group=store.groups[index].key or "flat", cause=cause), 1)
    return [
        read_only,
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
        *_segment_counters(kernel),
    ]


def _compaction_families(kernel: Kernel | None) -> list[Family]:
    if kernel is None:
        return []
    removed = kernel.engine.compaction.removed_total
    return [counter("topics_compacted_records_total", "superseded records that compaction removed", removed)]


def _segment_counters(kernel: Kernel) -> list[Family]:
    counters = kernel.store.env.counters
    return [
        counter("topics_segment_idx_rebuilt_total", "indexes rebuilt", counters.idx_rebuilt),
        counter("topics_segments_dropped_total", "segments dropped", counters.dropped),
        counter("topics_segments_rewritten_total", "segments rewritten", counters.rewritten),
        counter("topics_segments_relocated_total", "segments moved to the cold tier", counters.relocated),
        counter("topics_delete_flips_total", "delete flags set", counters.flips),
        counter("topics_delete_flip_failures_total", "delete flags not set", counters.flip_failures),
        counter("topics_cold_reads_total", "ranges read from the cold store", counters.cold_reads),
    ]


def schedule_families(kernel: Kernel) -> list[Family]:
    schedules, next_tick = kernel.engine.schedules, kernel.engine.schedules.next_tick()
    return [
        gauge("topics_schedules", "number of schedules", len(kernel.engine.state.schedules)),
        gauge("topics_schedules_failing", "schedules whose last tick was refused", len(schedules.problems)),
        counter("topics_schedule_ticks_total", "ticks appended since the start", schedules.ticks_total),
        gauge("topics_schedule_next_run_timestamp_seconds", "next tick of all, 0: none", (next_tick or 0) / 1000),
    ]


def live_families(live: Live) -> list[Family]:
    """Of streams and sockets."""
    delivery, streams = live.delivery, live.streams
    return [
        gauge("topics_delivery_pressure", "how short of time the process is, 0 to 1", delivery.pressure),
        gauge("topics_delivery_stage", "highest stage of the ladder that holds", delivery.stage),
        gauge("topics_delivery_ready", "topics that wait for a worker", delivery.depth()),
        counter("topics_delivery_services_total", "services of topics", delivery.services_total),
        histogram(
            "topics_delivery_duration_seconds",
            "from publication to the hand-over to streams",
            bounds=LATENCY_BOUNDS_S,
            counts=delivery.latency.counts,
            total=round(delivery.latency.sum_s, 6),
        ),
        counter("topics_streams_shed_total", "slow streams whose frames were dropped", streams.shed_total),
        counter("topics_streams_too_slow_total", "streams cut off for being stuck", streams.too_slow_total),
    ]


def tier_families(kernel: Kernel) -> list[Family]:
    """What was moved to the cold store, what failed, and whether the store answers. Nothing without a cold store."""
    tiers, counters = kernel.tiers, kernel.store.env.counters
    cold = tiers.cold
    if cold is None:
        return []
    last = "topics_relocation_last_success"
    return [
        gauge("topics_cold_store_up", "1 if the cold store is ours and answered last", int(cold.answers)),
        counter("topics_relocation_bytes_total", "bytes moved to cold", counters.relocated_bytes),
        counter("topics_relocation_failures_total", "moves that failed", counters.relocation_failures),
        gauge(f"{last}_ms", f"deprecated, use {last}_timestamp_seconds", tiers.last_success_ms),
        gauge(f"{last}_timestamp_seconds", "time of the last move, 0: none", tiers.last_success_ms / 1000),
        gauge("topics_relocation_waiting", "segments waiting for the cold pool", tiers.waiting),
    ]


def process_families(disk: DiskSpace | None) -> list[Family]:
    """The process as Prometheus' client libraries show it, and the disk."""
    stats = ProcessStats.read()
    info = Family("topics_build_info", "gauge", "version, codecs and interpreter that run")
    info.add(label(version=topics.__version__, kernel=KERNEL, python=platform.python_version()), 1)
    families = [
        info,
        counter("process_cpu_seconds_total", "processor time, user and system", stats.cpu_s),
        gauge("process_max_fds", "files that may be open", stats.max_fds),
    ]
    for name, help, value in (
        ("start_time_seconds", "start, since the epoch", stats.start_time_s),
        ("resident_memory_bytes", "resident memory", stats.resident_bytes),
        ("virtual_memory_bytes", "virtual memory", stats.virtual_bytes),
        ("open_fds", "open files", stats.open_fds),
    ):
        if value is not None:
            families.append(gauge(f"process_{name}", help, value))
    if disk is not None and disk.free_bytes is not None:
        families.append(gauge("topics_data_dir_free_bytes", "free space under the data directory", disk.free_bytes))
        families.append(gauge("topics_data_dir_size_bytes", "size of that file system", disk.size_bytes))
    return families
