"""All workloads, by name."""

from tests.crash.compacted import COMPACT_WORKLOADS
from tests.crash.floors import FLOOR_WORKLOADS, ROUTED_FLOOR_WORKLOADS
from tests.crash.readers import READER_WORKLOADS
from tests.crash.workloads import (
    LAYOUT_WORKLOADS,
    LOG_WORKLOADS,
    MIXED_WORKLOADS,
    ONE_TOPIC_WORKLOADS,
    ONE_TURN_WORKLOADS,
    QUEUE_WORKLOADS,
    ROUTER_WORKLOADS,
    SEGMENT_WORKLOADS,
)

ALL = [
    *LOG_WORKLOADS,
    *ONE_TOPIC_WORKLOADS,
    *ONE_TURN_WORKLOADS,
    *SEGMENT_WORKLOADS,
    *MIXED_WORKLOADS,
    *QUEUE_WORKLOADS,
    *COMPACT_WORKLOADS,
    *READER_WORKLOADS,
    *ROUTER_WORKLOADS,
    *LAYOUT_WORKLOADS,
    *FLOOR_WORKLOADS,
    *ROUTED_FLOOR_WORKLOADS,
]
BY_NAME = {workload.name: workload for workload in ALL}
