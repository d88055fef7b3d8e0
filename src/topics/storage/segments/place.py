"""Where segments lie: what all topics of a data directory share, and the directory of one topic.

`SegmentEnv` is made once per open data directory and carries the injected disk, the caches and the counters.
`TopicDir` names the files of one topic. Neither reads or writes; names come from `formats.names`, and a name that is
not canonically padded is used as it was found.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING

from topics.formats.names import SegmentPart, segment_name, topic_dir_name
from topics.storage.fs import Fs
from topics.storage.segments.maps import MapCache
from topics.storage.segments.open_files import OpenFiles

if TYPE_CHECKING:
    from topics.storage.segments.findings import Finding
    from topics.storage.stores import SegmentStore


class SegmentCounters:
    """Totals since start; the runtime reads them when metrics are asked for."""

    __slots__ = (
        "cold_reads",
        "dropped",
        "flip_failures",
        "flips",
        "idx_rebuilt",
        "relocated",
        "relocated_bytes",
        "relocation_failures",
        "rewritten",
    )

    def __init__(self) -> None:
        self.idx_rebuilt = 0
        self.dropped = 0
        self.rewritten = 0
        self.relocated = 0
        self.relocated_bytes = 0
        self.relocation_failures = 0
        self.flips = 0
        self.flip_failures = 0
        self.cold_reads = 0


class SegmentEnv:
    """`may_write` is False while recovery may still refuse the directory: repairs are then noted in `deferred`.

    `keeps_all`: log or metadata are lost, so segments that no mark covers may be all that is left of their records.
    """

    def __init__(
        self,
        fs: Fs,
        topics_dir: str,
        *,
        index_cache_bytes: int = 1 << 28,
        may_write: bool = True,
        keeps_all: bool = False,
    ) -> None:
        self.fs = fs
        self.topics_dir = topics_dir
        self.files = OpenFiles(fs)
        self.maps = MapCache(index_cache_bytes)
        self.counters = SegmentCounters()
        self.findings: list[Finding] = []
        self.may_write = may_write
        self.keeps_all = keeps_all
        self.deferred: list[Callable[[], None]] = []
        self.sidecar_lock = Lock()

    def report(self, finding: Finding) -> None:
        """Keep a finding made at run time until the runtime collects it."""
        self.findings.append(finding)

    def take_findings(self) -> list[Finding]:
        """What was found since the last call."""
        found, self.findings = self.findings, []
        return found

    def write_or_defer(self, action: Callable[[], None]) -> None:
        """Carry out a repair now, or once recovery has decided that this directory may be written."""
        if self.may_write:
            action()
        else:
            self.deferred.append(action)

    def allow_writes(self) -> None:
        """Recovery has accepted the directory: do what was put off, in order."""
        self.may_write = True
        deferred, self.deferred = self.deferred, []
        for action in deferred:
            action()

    def make_room(self) -> bool:
        """Descriptors are used up: give back those that only save time. Whether there were any."""
        mapped = len(self.maps)
        self.maps.close()
        return self.files.close_idle() + mapped > 0

    def close(self) -> None:
        self.files.close()
        self.maps.close()


class TopicDir:
    """One topic's directory in the hot tier, and its cold store if there is one."""

    def __init__(self, env: SegmentEnv, topic_id: int, *, name: str = "", cold: SegmentStore | None = None) -> None:
        self.env = env
        self.topic_id = topic_id
        self.name = name or topic_dir_name(topic_id)
        self.cold = cold
        self.path = f"{env.topics_dir}/{topic_dir_name(topic_id)}"
        self.name_synced = False  # whether the directory's own name was made durable since this process started
        self._found_names: dict[tuple[int, SegmentPart], str] = {}

    @property
    def fs(self) -> Fs:
        return self.env.fs

    def file(self, first_seq: int, part: SegmentPart) -> str:
        """Path of one part of a segment."""
        found = self._found_names.get((first_seq, part)) if self._found_names else None
        return f"{self.path}/{found or segment_name(first_seq, part)}"

    def make(self) -> None:
        """The directory, if it is missing; not durable before the directory above is synced."""
        if not self.name_synced and not self.fs.is_dir(self.path):
            self.fs.mkdir(self.path)

    def use_name(self, first_seq: int, part: SegmentPart, name: str) -> None:
        """This part lies under a name that parses but is not padded as we would."""
        self._found_names[first_seq, part] = name
