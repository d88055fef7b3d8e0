"""Format versions (`docs/spec/storage.md#sec-15`). Readers accept exactly these.

Only the snapshot and the tag sidecar carry their version on disk. A change to WAL or segment bytes needs a new
frame type, an envelope or a new file name pattern, so that an older reader cannot misread it.
"""

from typing import Final

STORAGE_FORMAT_VERSION: Final = 2
WAL_FORMAT_VERSION: Final = 2
SEGMENT_FORMAT_VERSION: Final = 1
SNAPSHOT_VERSION: Final = 3

# Derived data, ours to change: a sidecar of another version is simply rebuilt.
SIDECAR_VERSION: Final = 2
