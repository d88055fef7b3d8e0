"""The table of settings: name, type, default, unit, range and help of each, once.

A field `wal_shards` is the variable `TOPICS_WAL_SHARDS`. The tables of `docs/spec/http-api.md#sec-22` and
`docs/spec/storage.md#sec-17` are the contract; ranges they leave open are bounded only where a value could not work at
all.
"""

import os
from typing import Annotated, Self

import msgspec

from topics.config.resolve import DURATION_MS_MAX, Bool, Choice, Int, IntOrAuto, Ratio, Text, resolve_values, shown
from topics.limits import METRICS_TOPICS, MIB, SEQ_RESERVE_MAX

WAL_SHARDS_AUTO_MAX = 8
LOG_LEVELS = ("trace", "debug", "info", "warn", "warning", "error", "off")


def auto_wal_shards() -> int:
    return min(os.cpu_count() or 1, WAL_SHARDS_AUTO_MAX)


class _Table(msgspec.Struct, frozen=True, kw_only=True):
    """What both tables can do."""

    @classmethod
    def from_kwargs(cls, **values: object) -> Self:
        """Settings for tests and embedded use, checked and clamped like the environment; None means the default."""
        return resolve_values(cls, values).settings

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in shown(self).items())
        return f"{type(self).__name__}({fields})"


class Settings(_Table, frozen=True, kw_only=True):
    """Everything the server and the engine read."""

    # listener
    host: Annotated[str, Text(help="bind host, or a full host:port")] = "127.0.0.1"
    port: Annotated[int, Int(high=65_535, help="port; 0 lets the system pick one")] = 4000
    port_file: Annotated[str | None, Text(help="file that receives the bound host:port")] = None
    tls_cert: Annotated[str | None, Text(help="PEM file; with tls_key, TLS on the listener")] = None
    tls_key: Annotated[str | None, Text(help="PEM file; with tls_cert, TLS on the listener")] = None
    log: Annotated[str, Choice(choices=LOG_LEVELS, help="log level")] = "info"
    log_format: Annotated[str, Choice(choices=("text", "json"), help="lines for people, or JSON lines")] = "text"
    otel: Annotated[bool, Bool(help="spans of requests that carry a trace context; needs the extra otel")] = False

    # who may call
    api_keys: Annotated[str | None, Text(secret=True, help="key list; unset turns authentication off")] = None
    api_keys_file: Annotated[str | None, Text(help="TOML file of keys, read again on SIGHUP")] = None
    allow_insecure_no_auth: Annotated[bool, Bool(help="permit a public bind without keys")] = False
    allowed_hosts: Annotated[
        str | None, Text(help="without keys: host names, besides localhost and addresses, that callers may use")
    ] = None
    allowed_origins: Annotated[
        str | None, Text(help="origins whose web pages may use the server from a browser; * = any")
    ] = None
    metrics_topics: Annotated[int, Int(unit="topics", help="topics, and routers, that have metrics of their own")] = (
        METRICS_TOPICS
    )
    probe_auth: Annotated[bool, Bool(help="require a key on health and ready too")] = False

    # what a caller may use up
    max_body_bytes: Annotated[int, Int(unit="bytes", help="request body limit; 0 refuses every body")] = 64 * MIB
    max_topics: Annotated[int, Int(unit="topics", help="0 = unlimited")] = 100_000
    max_routers: Annotated[int, Int(unit="routers", help="0 = unlimited")] = 10_000
    max_watch_sessions: Annotated[int, Int(unit="sessions", help="0 = unlimited")] = 10_000
    max_sse_connections: Annotated[int, Int(unit="streams", help="open streams; 0 = unlimited")] = 10_000
    max_sse_connections_per_key: Annotated[int, Int(unit="streams", help="open streams per key; 0 = unlimited")] = 1000
    max_inflight_per_key: Annotated[int, Int(unit="requests", help="running requests per key; 0 = unlimited")] = 1000
    client_share: Annotated[
        float, Ratio(help="largest share of sessions, streams and connections of one key or address; 1 = all")
    ] = 0.25
    max_total_bytes: Annotated[int, Int(unit="bytes", help="retained bytes, all topics; 0 = unlimited")] = 0
    gzip_min_bytes: Annotated[int, Int(unit="bytes", help="compress JSON responses from this size; 0 = never")] = 0

    # memory
    recent_cache_bytes: Annotated[int, Int(unit="bytes", help="recent stored bytes, all topics")] = 64 * MIB
    cold_cache_bytes: Annotated[int, Int(unit="bytes", help="bytes fetched from cold, all topics")] = 16 * MIB
    index_cache_bytes: Annotated[int, Int(unit="bytes", help="mapped indexes of sealed segments")] = 256 * MIB

    # places
    data_dir: Annotated[str, Text(help="log, metadata, hot segments")] = "./topics-data"
    cold_dir: Annotated[str | None, Text(help="cold root, path or URI; unset = no tiering")] = None

    # write-ahead log
    wal_shards: Annotated[
        int, IntOrAuto(low=1, high=64, unit="groups", help="log groups; may change between starts")
    ] = msgspec.field(default_factory=auto_wal_shards)
    wal_file_bytes: Annotated[int, Int(low=4096, unit="bytes", help="largest log file")] = 64 * MIB
    wal_queue: Annotated[int, Int(low=1, unit="submissions", help="submissions queued per group")] = 4096
    wal_max_batch_frames: Annotated[int, Int(low=1, unit="frames", help="batch limit")] = 16_384
    wal_max_batch_bytes: Annotated[int, Int(low=1, unit="bytes", help="batch limit")] = 8 * MIB
    commit_window_us: Annotated[int, Int(high=1_000_000, unit="us", help="largest window without pressure")] = 1000
    sync_interval_ms: Annotated[
        int, Int(low=1, high=DURATION_MS_MAX, unit="ms", help="longest age of unsynced bytes")
    ] = 50
    seq_reserve: Annotated[int, Int(low=1, high=SEQ_RESERVE_MAX, unit="seqs", help="ceiling block")] = 256
    wal_damage: Annotated[
        str, Choice(choices=("quarantine", "refuse"), help="what a start does with damage in the middle of the log")
    ] = "quarantine"
    salvage: Annotated[bool, Bool(help="start in spite of lost metadata or log files, and report")] = False

    # checkpoints, snapshots, segments
    checkpoint_interval_ms: Annotated[int, Int(low=1, high=DURATION_MS_MAX, unit="ms", help="checkpoint timer")] = 5000
    snapshot_bytes: Annotated[int, Int(low=1, unit="bytes", help="log bytes between snapshots")] = 64 * MIB
    snapshot_interval_ms: Annotated[int, Int(low=1, high=DURATION_MS_MAX, unit="ms", help="time between snapshots")] = (
        60_000
    )
    segment_max_events: Annotated[int, Int(low=1, high=2**32 - 1, unit="records", help="seal at this many")] = 10_000
    segment_max_bytes: Annotated[int, Int(low=1, high=2**31, unit="bytes", help="seal at this size")] = 64 * MIB
    segment_max_age_ms: Annotated[
        int, Int(high=DURATION_MS_MAX, unit="ms", help="seal at this age; 0 = never by age")
    ] = 3_600_000
    rewrite_dead_ratio: Annotated[float, Ratio(help="rewrite a segment this dead; 0 = never")] = 0.5
    rewrite_min_dead_bytes: Annotated[int, Int(unit="bytes", help="and with at least this much to win")] = 1 * MIB
    rewrite_bytes_per_sec: Annotated[int, Int(low=1, unit="bytes/s", help="rewrite rate")] = 16 * MIB

    # tiers
    hot_retain_segments: Annotated[int, Int(unit="segments", help="newest sealed segments that stay hot")] = 4
    hot_retain_bytes: Annotated[int, Int(unit="bytes", help="byte bound for the same; 0 = off")] = 0
    relocate_interval_ms: Annotated[int, Int(low=1, high=DURATION_MS_MAX, unit="ms", help="relocation sweep")] = 5000
    cold_io_threads: Annotated[int, Int(low=1, high=64, unit="threads", help="cold pool size")] = 4

    # diagnostics
    test_min_heartbeat_ms: Annotated[
        int | None, Int(low=1, high=1000, unit="ms", help="lowers the floor of heartbeat_ms")
    ] = None


class ClientSettings(_Table, frozen=True, kw_only=True):
    """What clients and commands read; a server knows these names and ignores their values."""

    url: Annotated[str, Text(help="server to talk to")] = "http://127.0.0.1:4000"
    api_key: Annotated[str | None, Text(secret=True, help="bearer key")] = None
