"""The write-ahead log's bytes (`docs/spec/storage.md#sec-3`), by name in one place.

frame    frames, encoded and cut
blob     payloads inside of frames
bodies   control bodies
scan     a buffer's frames as columns, checked
search   valid frames behind damage
"""

from topics.formats.wal.scan import Stop, WalColumns, complete_count, complete_end, scan_wal
from topics.formats.wal.search import Behind, find_next_valid, scan_behind

__all__ = [
    "Behind",
    "Stop",
    "WalColumns",
    "complete_count",
    "complete_end",
    "find_next_valid",
    "scan_behind",
    "scan_wal",
]
