"""ServerLog: topics read from a running server, through the two bulk endpoints (docs/bulk-endpoints.md).

The manifest is the cut. Sealed segments are read from their files where this process can prove that the files are the
server's; everything else comes as frames. Called by the planner on the driver and by scans on executors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from topics.errors import Corruption, Forbidden, TopicNotFound, TopicsError, Unauthorized
from topics.formats import file_names
from topics.formats.segments import scan_segment
from topics.spark.logs.bulk_client import PLANNING_RETRIES, Remote, RemoteAnswer, key_refused, topic_path
from topics.spark.logs.log import LogAddress
from topics.spark.logs.read_files import open_files
from topics.spark.option_values import TopicChoice
from topics.spark.planning.cut import LostSeqs, SegmentBlock, ServerBlock, TopicCut, log
from topics.spark.planning.tasks import TopicPart
from topics.spark.secret import without_secrets
from topics.storage.osfs import OsFs
from topics.storage.snapshots import load_snapshot

FRAMES_BYTES: Final = 4 << 20
_PAGE: Final = 1000
_LANES: Final = 8
_TOPICS_PER_LANE: Final = 16
"""Connections of a plan over many topics, and how many topics make another one worth its while."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class ServerLog:
    """The log of a server; see `Log`."""

    def __init__(self, address: LogAddress, remote: Remote | None = None) -> None:
        self._address = address
        self._remote = remote or Remote(address, retries=PLANNING_RETRIES)

    def close(self) -> None:
        self._remote.close()

    def cuts(self, topics: TopicChoice, *, now_ms: int) -> dict[str, TopicCut]:
        names = topics.names if topics.names is not None else filter(topics.test(), self._listed(topics.prefix))
        cuts = self._cuts(list(names))
        warn_of_cold(cuts.values(), self._address)
        return cuts

    def _cuts(self, names: Sequence[str]) -> dict[str, TopicCut]:
        """Cuts by name. The requests for many topics go side by side: what takes long is the way to the server."""
        lanes = min(-(-len(names) // _TOPICS_PER_LANE), _LANES)
        if lanes <= 1:
            found = [(name, _cut(self._get, name)) for name in names]
        else:
            with ThreadPoolExecutor(lanes) as pool:
                shares = pool.map(self._cuts_of_lane, (names[lane::lanes] for lane in range(lanes)))
                found = [each for share in shares for each in share]
        return {name: cut for name, cut in found if cut is not None}

    def _cuts_of_lane(self, names: Sequence[str]) -> list[tuple[str, TopicCut | None]]:
        lane = ServerLog(self._address)
        try:
            return [(name, _cut(lane._get, name)) for name in names]
        finally:
            lane.close()

    def names(self) -> list[str]:
        return self._listed("")

    def heads(self) -> dict[str, int]:
        """The head seq of every topic that the key may see."""
        return {entry["topic"]: entry["head_seq"] for entry in self._entries("")}

    def _listed(self, prefix: str) -> list[str]:
        return [entry["topic"] for entry in self._entries(prefix)]

    def _entries(self, prefix: str) -> Iterator[dict[str, Any]]:
        cursor: str | None = None
        while True:
            query = {"prefix": prefix, "page_size": _PAGE} | ({"cursor": cursor} if cursor else {})
            page = self._get("/v0/topics", query).json()
            yield from page["topics"]
            cursor = page.get("next_cursor")
            if not cursor:
                return

    def _get(self, path: str, query: dict[str, Any] | None = None) -> RemoteAnswer:
        try:
            return self._remote.get(path, query)
        except (Unauthorized, Forbidden) as error:
            raise key_refused(self._address, error, scope="read") from None

    def seq_at(self, cut: TopicCut, ts_ms: int) -> int:
        """By the segments' times, then by asking for single records inside one."""
        for block in cut.blocks:
            assert isinstance(block, ServerBlock)
            if block.max_ts is None or block.max_ts >= ts_ms:
                found = self._seq_in(cut, block, ts_ms)
                if found < block.end_seq:
                    return max(found, cut.earliest_seq)
        return cut.end_seq

    def _seq_in(self, cut: TopicCut, block: ServerBlock, ts_ms: int) -> int:
        low, high = max(block.first_seq, cut.earliest_seq), block.end_seq
        if block.min_ts is not None and block.min_ts >= ts_ms:
            return low
        while low < high:
            middle = (low + high) // 2
            found = self._record_at(cut, middle, high)
            if found is None or found[1] >= ts_ms:
                high = middle
            else:
                low = found[0] + 1
        return low

    def _record_at(self, cut: TopicCut, lo: int, hi: int) -> tuple[int, int] | None:
        """Seq and time of the first live record in `[lo, hi)`. An answer ends before its second gap, record or not."""
        while lo < hi:
            query = {"from_seq": lo - 1, "to_seq": hi - 1, "max_bytes": 1}
            answer = self._get(topic_path(cut.name, "frames"), query)
            frames = scan_segment(answer.body)
            if len(frames):
                return int(frames.seq[0]), int(frames.ts[0])
            gap_ends = [gap.gap_to for gap in _gaps(answer, lo, hi)]
            lo = max(int(answer.headers["topics-last-seq"]), *gap_ends, lo) + 1
        return None

    def bytes_end(self, cut: TopicCut, lo: int, bytes_max: int) -> int:
        """By the mean record size of each segment: the server tells no sizes of single records."""
        left = bytes_max
        for block in cut.blocks:
            count = block.end_seq - max(lo, block.first_seq)
            if count <= 0:
                continue
            size = max(block.bytes // max(block.count, 1), 1)
            if count * size > left:
                fits = left // size
                return max(max(lo, block.first_seq) + fits, lo + 1)
            left -= count * size
        return cut.end_seq

    def first_live(self, cut: TopicCut, lo: int) -> int:
        return max(cut.earliest_seq, lo)


def _cut(get: Callable[[str], RemoteAnswer], name: str) -> TopicCut | None:
    try:
        return cut_from_manifest(get(topic_path(name, "segments")).json())
    except TopicNotFound:
        return None


def cut_from_manifest(told: dict[str, Any]) -> TopicCut:
    """The cut that a manifest describes."""
    files = told.get("files")
    reason = told.get("evict_reason")
    return TopicCut(
        name=told["topic"],
        topic_id=told["topic_id"],
        epoch=told["epoch"],
        head_seq=told["head_seq"],
        earliest_seq=told["earliest_seq"],
        evict_floor=told["evict_floor"],
        causes=((reason, told["evict_floor"] - 1),) if reason else (),
        lost=tuple(LostSeqs(gap["gap_from"], gap["gap_to"], gap["reason"]) for gap in told.get("lost", ())),
        blocks=tuple(_block(segment, told, files) for segment in told["segments"]),
        instance=files["instance"] if files is not None else "",
        ancestors=tuple((epoch, head) for epoch, head in told.get("ancestors", ())),
    )


def _block(segment: dict[str, Any], told: dict[str, Any], files: dict[str, str] | None) -> ServerBlock:
    return ServerBlock(
        first_seq=segment["first_seq"],
        count=segment["last_seq"] - segment["first_seq"] + 1,
        bytes=segment["bytes"],
        is_sealed=segment["state"] == "sealed",
        min_ts=segment["min_ts"],
        max_ts=segment["max_ts"],
        live=segment["count"],
        file=_file(segment, told, files) if files is not None and segment["state"] == "sealed" else None,
        instance=(files["instance"], files.get("boot", "")) if files is not None else ("", ""),
        dead=tuple((low, high) for low, high in segment.get("dead", ())),
    )


def _file(segment: dict[str, Any], told: dict[str, Any], files: dict[str, str]) -> SegmentBlock | None:
    """Where the manifest says that a sealed segment lies."""
    stem = f"{file_names.TOPICS_DIR}/{file_names.topic_dir_name(told['topic_id'])}/" + file_names.segment_name(
        segment["first_seq"], "data"
    ).removesuffix(".data")
    root: str | None = files.get("data_dir")
    if segment["tier"] == "cold":
        uri, mark, options = segment.get("uri", "").partition("?")
        root = uri.removesuffix(f"/{stem}.data") + mark + options if uri.endswith(f"/{stem}.data") else None
    if root is None:
        return None
    return SegmentBlock(
        root=root,
        stem=stem,
        first_seq=segment["first_seq"],
        count=segment["last_seq"] - segment["first_seq"] + 1,
        bytes=segment["bytes"],
        is_sealed=True,
        tier=segment["tier"],
    )


_warned: set[str] = set()


def warn_of_cold(cuts: Iterable[TopicCut], address: LogAddress) -> None:
    """One line, once in a process, where cold segments would come through the server because nobody opens their store.

    Executors try for themselves: they may have keys that this process has not."""
    cold = (b for cut in cuts for b in cut.blocks if isinstance(b, ServerBlock) and b.file and b.file.tier == "cold")
    block = next(cold, None)
    if block is None or block.file is None or reachable_file(block, address.cold_path) is not None:
        return
    store = without_secrets(block.file.root)
    if store not in _warned:
        _warned.add(store)
        log.warning(
            "the driver cannot open the cold store %s: where executors cannot either, its segments come through the "
            "server; give coldPath, or the store's keys in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)",
            store,
        )


# --- on executors -----------------------------------------------------------------------------------------------------


def reachable_file(block: ServerBlock, cold_path: str | None = None) -> SegmentBlock | None:
    """The segment's files, if they are open to this process and proven to be the server's.

    A manifest names a cold store without keys and options; `cold_path` is how this reader opens it."""
    file = block.file
    if file is None:
        return None
    instance, boot = block.instance
    if file.tier != "cold":
        return file if _is_data_dir(file.root, instance, boot) else None
    roots = (root for root in (cold_path, file.root) if root)
    return next((replace(file, root=root) for root in roots if _is_cold_root(root, instance)), None)


@lru_cache(maxsize=16)
def _is_data_dir(root: str, instance: str, boot: str) -> bool:
    """Whether this is the server's machine and directory: its kernel's boot id, and the directory's own name."""
    try:
        if not boot or _BOOT_ID.read_text().strip() != boot:
            return False
        snapshot = load_snapshot(OsFs(), f"{root}/{file_names.META_DIR}").snapshot
    except (OSError, TopicsError):
        return False
    return snapshot is not None and snapshot.instance == instance


@lru_cache(maxsize=16)
def _is_cold_root(root: str, instance: str) -> bool:
    try:
        return open_files(root).read(file_names.OWNER).decode("ascii", "replace").strip() == instance
    except (OSError, TopicsError):
        return False


@dataclass(frozen=True, slots=True)
class ServerFrames:
    """Frames of one answer; it covers everything up to `end_seq`, gaps included."""

    body: bytes
    end_seq: int
    gaps: tuple[LostSeqs, ...]


def frames_between(address: LogAddress, task: TopicPart, lo: int, hi: int) -> Iterator[ServerFrames]:
    """Answers of the frame endpoint until `[lo, hi)` is covered."""
    remote = Remote(address)
    try:
        while lo < hi:
            answer = _frames(remote, task, lo, hi)
            yield answer
            if answer.end_seq <= lo:
                return
            lo = answer.end_seq
    finally:
        remote.close()


def _frames(remote: Remote, task: TopicPart, lo: int, hi: int) -> ServerFrames:
    query = {"from_seq": lo - 1, "to_seq": hi - 1, "max_bytes": FRAMES_BYTES}
    try:
        answer = remote.get(topic_path(task.topic, "frames"), query)
    except TopicNotFound:
        return ServerFrames(b"", hi, (LostSeqs(lo, hi - 1, "deleted"),))
    if int(answer.headers["topics-epoch"]) != task.epoch:
        return ServerFrames(b"", hi, (LostSeqs(1, int(answer.headers["topics-head-seq"]), "recreated"),))
    gaps = _gaps(answer, lo, hi)
    if any(gap.reason == "recreated" for gap in gaps):
        return ServerFrames(
            b"", hi, gaps
        )  # the frames of the answer begin anew: they are not those that were asked for
    end = int(answer.headers["topics-last-seq"]) + 1
    if gaps:
        end = max(end, gaps[0].gap_to + 1)
    if end <= lo and int(answer.headers["topics-head-seq"]) >= lo:
        raise Corruption(file=f"frames of topic {task.topic!r}", offset=0, reason="an answer covers nothing")
    if end <= lo:  # the topic ends before what was planned: it has lost its end
        return ServerFrames(b"", hi, gaps or (LostSeqs(lo, hi - 1, "restart"),))
    return ServerFrames(answer.body, min(end, hi), gaps)


def _gaps(answer: RemoteAnswer, lo: int, hi: int) -> tuple[LostSeqs, ...]:
    told = answer.headers.get("topics-tombstone")
    if not told:
        return ()
    tombstone = json.loads(told)
    if tombstone["reason"] == "recreated":
        return (LostSeqs(tombstone["gap_from"], tombstone["gap_to"], "recreated"),)
    low, high = max(tombstone["gap_from"], lo), min(tombstone["gap_to"], hi - 1)
    return (LostSeqs(low, high, tombstone["reason"]),) if low <= high else ()
