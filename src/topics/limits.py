"""Limits: every fixed number of the contract, with its unit in its name and its reason beside it.

None of these is configurable; what is stands in `topics.config`. A limit is either refused on excess (a plain constant,
`docs/spec/http-api.md#sec-7-2`) or quietly clamped (a `Clamp`, `docs/spec/http-api.md#sec-7-3`). Imported by every
layer.
"""

import msgspec

KIB = 1024
MIB = 1024 * KIB

DAY_MS = 86_400_000

U64_MAX = 2**64 - 1
U32_MAX = 2**32 - 1
I32_MAX = 2**31 - 1
I32_MIN = -(2**31)


class Clamp(msgspec.Struct, frozen=True, kw_only=True):
    """A value that is moved into `low..high` and never refused; `zero` is what 0 means where that is special."""

    default: int
    low: int
    high: int
    zero: int | None = None

    def __call__(self, value: int | None) -> int:
        if value is None:
            return self.default
        if value == 0 and self.zero is not None:
            return self.zero
        return min(max(value, self.low), self.high)

    def with_low(self, low: int) -> "Clamp":
        return msgspec.structs.replace(self, low=low)


# --- names and requests (`docs/spec/http-api.md#sec-4`, `#sec-7`; `docs/spec/semantics.md#sec-2`) ---------------------

NAME_BYTES_MAX = 255  # topic and router names; fits one path segment and one length byte
JSON_DEPTH_MAX = 127  # nesting levels, the body object included: 128 is refused, so no parser can run out of stack
FIELDS_MAX = 100_000  # of a body with unknown or repeated ones, outside payloads: 10,000 records have four each
RECORDS_PER_WRITE_MAX = 10_000  # one submission must stay one bounded slice of loop time
EXPECTED_TAGS_MAX = 100  # of one write: each is looked up in every segment, on the loop
RECORD_BYTES_MAX = 1 * MIB  # text of data + meta: a record is an event, not a file
META_BYTES_MAX = 16 * KIB  # text of meta, which is rendered even where data is left out
META_KEYS_MAX = 64
TAG_BYTES_MAX = 256  # tags are kept in memory for the tail
NODE_BYTES_MAX = 128
IDEMPOTENCY_KEY_BYTES_MAX = 256  # keys are kept in memory for their window
WATCH_TOPICS_MAX = 256  # each costs a cursor in every resume id of the stream
TOKEN_TOPICS_MAX = 256  # of a stream token, as of a watch
STREAM_TOKENS_PER_KEY_MAX = 1000  # not yet expired; kept in memory
SEQS_PER_CALL_MAX = 1000  # ack, nack, extend, and what acts on jobs by seq
JOB_PRIORITY_MAX = 9  # and as far below 0: strict levels, so few
JOB_DELAY_MS_MAX = 36_525 * DAY_MS  # 100 years: a later time is a mistake
UNIQUE_KEY_BYTES_MAX = 256  # keys are kept in memory
ERROR_BYTES_MAX = 2048  # of a nack: kept in memory with the job
RESULT_BYTES_MAX = 64 * KIB  # of an ack
PROGRESS_BYTES_MAX = 256  # of the text: kept in memory with the lease
CRON_BYTES_MAX = 256
SCHEDULE_EVERY_MS_MIN = 1000  # the server looks at the clock about every 50 ms
WS_MESSAGE_BYTES_MAX = 64 * MIB  # the default body limit: a publish is as large as a POST

# --- clamped values (`docs/spec/http-api.md#sec-7-3`) -----------------------------------------------------------------

DIFF_LIMIT = Clamp(default=256, low=1, high=1000, zero=256)  # records
WATCH_LIMIT = DIFF_LIMIT
WS_LIMIT = Clamp(default=1000, low=1, high=1000, zero=256)  # records
DIFF_WAIT_MS = Clamp(default=0, low=0, high=30_000)  # below the idle timeout of common proxies
DIFF_BATCH_BYTES = Clamp(default=1 * MIB, low=1, high=8 * MIB, zero=1 * MIB)
TABLE_LIMIT = Clamp(default=256, low=1, high=100_000, zero=256)  # records: columns cost little a record
TABLE_BATCH_BYTES = Clamp(default=1 * MIB, low=1, high=64 * MIB, zero=1 * MIB)
WS_BATCH_BYTES = DIFF_BATCH_BYTES
WATCH_BATCH_BYTES = Clamp(default=256 * KIB, low=1, high=8 * MIB, zero=1 * MIB)
HEARTBEAT_MS = Clamp(default=15_000, low=1000, high=60_000)
PAGE_SIZE = Clamp(default=100, low=1, high=1000)  # entries of a list
CLAIM_MAX = Clamp(default=1, low=1, high=1000)  # jobs, for claim and work streams
LEASE_MS = Clamp(default=30_000, low=100, high=86_400_000)  # a day: beyond it a dead worker's job looks lost
CLAIM_JITTER_MS = Clamp(default=0, low=0, high=5000)
NACK_DELAY_MS = Clamp(default=0, low=0, high=86_400_000)
CLAIM_WAIT_MS = DIFF_WAIT_MS
REDRIVE_LIMIT = Clamp(default=1000, low=1, high=1000)  # letters that one call looks at
TOKEN_TTL_MS = Clamp(default=60_000, low=1000, high=3_600_000)  # a page that needs longer asks again
EFFECTIVE_PRIORITY = Clamp(default=0, low=-1000, high=1000)

# --- topics, reads, routers (`docs/spec/semantics.md`) ----------------------------------------------------------------

IDEMPOTENCY_WINDOW_MS_DEFAULT = 120_000
COMPACT_GRACE_MS_DEFAULT = 60_000  # a reader that is a minute behind still meets every value of a compacted topic
READ_EXAMINED_MAX = 10_000  # seqs looked at by one read, so that a filter cannot hold the loop
AHEAD_RECORDS = 1024  # what one trip to the files brings a stream in old history: about a millisecond of a thread
AHEAD_BYTES = 1 * MIB
SEQ_RESERVE_MAX = 65_536  # seqs in the largest ceiling block: what a power cut can skip
ROUTER_HOPS_MAX = 8  # copies of one record along a path, so that a cycle comes to rest
ROUTER_BATCH_RECORDS = 1024  # source records of one router step
ROUTER_TICK_MS = 50  # the safety net behind wake-ups
ROUTER_RETRY_MS = Clamp(default=50, low=50, high=1000)  # doubling wait while a dest is full

# --- delivery (`docs/spec/delivery.md#sec-2`) -------------------------------------------------------------------------

PRIORITY_AUTO_MAX = 500
PRIORITY_HALF_LIFE_MS = 30_000
PRIORITY_AUTO_FLOOR_MS = 300_000  # idle this long: no recency bonus is left
AGE_PER_MS = 0.1  # priority gained while waiting
AGE_CAP_MS = 10_000  # waited this long: overdue, in the top band whatever the priority
AGE_TICK_MS = 50
BAND_FLOORS = (750, 500, 250, 0)  # lowest effective priority of B4, B3, B2, B1; B0 is below
BAND_WEIGHTS = (8, 4, 2, 1, 1)  # services per round for B4, B3, B2, B1, B0
GOVERNOR_MS = 100
LATENCY_CEILING_MS = 5  # mean wait that counts as full pressure
LATENCY_SAMPLE_MAX_MS = 20
EWMA_ALPHA = 0.2  # per serviced entry
PRESSURE_COALESCE = 0.2
PRESSURE_WIDEN = 0.4
PRESSURE_DEFER = 0.8
PRESSURE_DEFER_RELEASE = 0.6
PRESSURE_REFUSE = 0.95
SUSTAIN_SAMPLES = 3  # consecutive samples before deferring starts
COALESCE_MAX_MS = 20
COMMIT_WINDOW_MIN_MS = 0.5
COMMIT_WINDOW_MAX_MS = 10.0
ADMIT_WAIT_MS = 1000  # longest wait for a place in a full commit queue
SSE_BUFFER_FRAMES = 1024  # one connection's outbound bound, together with the bytes: whichever comes first
SSE_BUFFER_BYTES = 8 * MIB
WS_BUFFER_MESSAGES = 4
BUFFER_GRACE_MS = 5000  # lagged this long: unsent frames are dropped and the cursor goes back
SLOW_TIMEOUT_MS = 30_000  # not one byte taken for this long: the connection is closed
SESSION_TTL_MS = 300_000  # a watch session without an open stream
SESSION_YIELD_MS = 10_000  # and where its place is needed: five times what a stream tells a browser to wait
SSE_RETRY_MS = 2000  # what a stream tells the browser to wait before reconnecting
WORK_RECHECK_MS = 250  # expiries and nack delays under a quiet work stream
DRAIN_MS = 10_000  # what a running request is given at shutdown
RENDER_CACHE_SEQS = 1024  # per topic
RENDER_VARIANTS = 8  # data, tags, meta: each on or off
RENDER_INLINE_BYTES_MAX = 256 * KIB  # more is never rendered or compressed on the event loop

# --- transport (`docs/spec/http-api.md#sec-2`, `#sec-9` and `#sec-20`) ------------------------------------------------

H2_STREAM_WINDOW_BYTES = 1 * MIB
H2_CONNECTION_WINDOW_BYTES = 4 * MIB
H2_PING_MS = 20_000
H2_PING_TIMEOUT_MS = 20_000
IDLE_CONNECTION_MS = 60_000  # without a request head
METRICS_TOPICS = 1000  # topics with metrics of their own unless a setting says otherwise: a scrape stays bounded
LISTEN_BEFORE_READY_MS = 5000  # a recovery longer than this may be overtaken by listening

# --- waiting in a thread ---------------------------------------------------------------------------------------------

SIGNAL_LOOK_S = 0.1  # only the main thread runs handlers, and a signal that the system gave to another does not wake it
