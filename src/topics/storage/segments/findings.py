"""Findings: what storage met on disk that an operator should hear of, as values.

A finding never changes what happens; it says what happened. `counter` names the metric it moves, "" for none. Made by
loading, healing and jobs; logged and counted by the runtime, which alone knows the log and the registry.
"""

from typing import Literal

import msgspec

Severity = Literal["info", "warning", "error"]

IDX_REBUILT = "topics_segment_idx_rebuilt_total"
CORRUPT = "topics_segments_corrupt"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    topic_id: int
    file: str
    message: str
    counter: str = ""
    severity: Severity = "warning"
