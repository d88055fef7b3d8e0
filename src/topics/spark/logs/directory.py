"""DirectoryLog: topics read from the files of a data directory, a cold directory, or a copy of either.

Needs no lock and writes nothing, so the server may be running, stopped or gone (`docs/spec/storage.md#sec-12`). A cut
is made from what a start would find there (`runtime.recovery.reader`), with retention as of now. Records of `ephemeral`
topics and router copies that no checkpoint has stored yet are in no file, hence in no cut.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from typing import Final, Literal, cast

import numpy as np

from topics.core.apply import apply
from topics.core.capture import dead_ranges
from topics.core.manifest import stored_blocks
from topics.core.retention.removal import blocks_from, first_live
from topics.core.retention.rules import due
from topics.core.slots.restore import load_sealed
from topics.core.slots.sealed_slots import Sealed
from topics.core.slots.slot_range import Slots
from topics.core.slots.tail import TailRun
from topics.core.topic import TopicLog
from topics.engine.recovery.replay import recovered_name
from topics.errors import ConfigError, CorruptSegment
from topics.formats import file_names as names
from topics.formats.segments import ENTRY_BYTES
from topics.model.config import DEFAULT_CONFIG
from topics.model.ops import IN_ACTIVE, RESIDENT
from topics.runtime.recovery import reader
from topics.runtime.recovery.look import Looked
from topics.spark.logs.log import LogAddress
from topics.spark.logs.read_files import Files, open_files
from topics.spark.option_values import TopicChoice, Wanted
from topics.spark.planning.cut import I64, Block, LogBlock, LostSeqs, SegmentBlock, TopicCut
from topics.storage.segments.loading.leftovers import list_topic_dir
from topics.storage.segments.sealed_segment import SealedSegment
from topics.storage.segments.topic_dir import SegmentEnv, TopicDir
from topics.storage.tiers.stores import NoSuchObject

_FILE_BITS: Final = np.uint64(32)
_LOOKS_KEPT: Final = 3
_QUESTIONS: Final = 10
"""How often a question is asked again where files have moved."""


class LeftOutWarning(UserWarning):
    """A topic that matches a pattern is not in the table."""


class DirectoryLog:
    """The log in a directory; see `Log`. The last look stays open for questions about its cuts."""

    def __init__(self, address: LogAddress) -> None:
        assert address.path is not None
        self._address = address
        self._files = open_files(address.path)
        self._cold = open_files(address.cold_path) if address.cold_path else None
        self._looked: list[Looked] = []
        self._topics: dict[str, TopicLog] = {}
        self._left_out: set[int] = set()

    def close(self) -> None:
        while self._looked:
            self._looked.pop().close()
        self._topics.clear()  # by far the most of what a plan holds in memory

    def cuts(self, topics: TopicChoice, *, now_ms: int) -> dict[str, TopicCut]:
        wanted = topics.test()
        if layout(self._files) == "cold":
            self._topics = {topic.name: topic for topic in cold_only_topics(self._files, wanted)}
            return {name: cold_only_cut(topic, self._files) for name, topic in self._topics.items()}
        cuts: dict[str, TopicCut] = {}

        def cut(looked: Looked) -> None:
            cuts.clear()
            for topic in looked.state.topics.values():
                if wanted(topic.name) and self._is_stored(topic, named=topics.names is not None):
                    cuts[topic.name] = cut_of(looked, topic, self._files, self._cold, now_ms=now_ms)

        looked = self._look(wanted, now_ms, cut)
        self._keep(looked)
        self._topics |= {name: topic for name, topic in looked.state.topics.items() if wanted(name)}
        return cuts

    def names(self) -> list[str]:
        if layout(self._files) == "cold":
            return sorted(topic.name for topic in cold_only_topics(self._files, reader.everything))
        with closing(self._look(reader.everything, 0)) as looked:
            return list(looked.state.topics)

    def _look(self, wanted: Wanted, now_ms: int, use: Callable[[Looked], None] = lambda _: None) -> Looked:
        return look_at(self._files, self._cold, wanted=wanted, now_ms=now_ms, use=use)

    def _keep(self, looked: Looked) -> None:
        """For questions about its topics. What is pushed out gives its descriptors back; it would open files anew."""
        if len(self._looked) >= _LOOKS_KEPT:
            self._looked.pop(0).close()
        self._looked.append(looked)

    def _is_stored(self, topic: TopicLog, *, named: bool) -> bool:
        """A topic that is in no file cannot be read here: an error if it was asked for by name, else a warning."""
        if not topic.config.is_ephemeral:
            return True
        sentence = f"topic {topic.name!r} is ephemeral: its records are only in the server's memory; read it with url"
        if named:
            raise ConfigError(sentence)
        if topic.id not in self._left_out:
            self._left_out.add(topic.id)
            warnings.warn(sentence, LeftOutWarning, stacklevel=2)
        return False

    # --- questions of a planner -----------------------------------------------------------------------------------

    def seq_at(self, cut: TopicCut, ts_ms: int) -> int:
        return self._asked(cut, lambda: self._seq_at(cut, ts_ms))

    def _seq_at(self, cut: TopicCut, ts_ms: int) -> int:
        """Times never fall, so the first block whose last slot is late enough has the answer."""
        blocks = self._blocks(cut, cut.earliest_seq)
        at = _first(len(blocks), lambda i: _loaded(blocks[i]).expired(ts_ms) < blocks[i].count)
        if at == len(blocks):
            return cut.end_seq
        found = blocks[at].first_seq + blocks[at].expired(ts_ms)
        return min(max(found, cut.earliest_seq), cut.end_seq)

    def bytes_end(self, cut: TopicCut, lo: int, bytes_max: int) -> int:
        return self._asked(cut, lambda: self._bytes_end(cut, lo, bytes_max))

    def _bytes_end(self, cut: TopicCut, lo: int, bytes_max: int) -> int:
        left, started = bytes_max, False
        for block in self._blocks(cut, lo):
            first = max(lo - block.first_seq, 0)
            sizes = _lens(_loaded(block))[first : cut.end_seq - block.first_seq]
            total = np.cumsum(sizes)
            if len(total) and total[-1] > left:
                fits = int(np.searchsorted(total, left, side="right"))
                first_used = int(np.argmax(sizes > 0))
                return block.first_seq + first + (fits if started or fits > first_used else first_used + 1)
            left -= int(total[-1]) if len(total) else 0
            started = started or left < bytes_max
        return cut.end_seq

    def first_live(self, cut: TopicCut, lo: int) -> int:
        return self._asked(cut, lambda: self._first_live(cut, lo))

    def _first_live(self, cut: TopicCut, lo: int) -> int:
        topic = self._topics.get(cut.name)
        if topic is None:
            return lo
        found = first_live(topic, lo)
        while topic.awaiting:
            reader.load_indexes(topic)
            found = first_live(topic, lo)
        return min(found, cut.end_seq)

    def _asked(self, cut: TopicCut, question: Callable[[], int]) -> int:
        """The answer to a question about a cut; where files have moved since they are looked for again. Seqs mean the
        same in every look, as long as it is the same topic."""
        for _ in range(_QUESTIONS):
            try:
                return question()
            except (FileNotFoundError, NoSuchObject, CorruptSegment) as error:
                moved = error
                looked = self._look(TopicChoice((cut.name,)).test(), 0)
                topic = looked.state.topics.get(cut.name)
                if topic is None or topic.epoch != cut.epoch:
                    raise ConfigError(f"topic {cut.name!r} was deleted while the read was planned") from error
                self._keep(looked)
                self._topics[cut.name] = topic
        raise moved

    def _blocks(self, cut: TopicCut, lo: int) -> list[Slots]:
        """Blocks of the cut with a slot at or above `lo`."""
        topic = self._topics.get(cut.name)
        found = blocks_from(topic, lo) if topic is not None else iter(())
        return [block for block in found if block.first_seq < cut.end_seq]


def _loaded(block: Slots) -> Slots:
    """The block, when its index is at hand. FileNotFoundError if its files have gone: it says nothing true then."""
    if isinstance(block, Sealed):
        segment = cast(SealedSegment, block.view)
        segment.load_index()
        path = segment.place.file(segment.first_seq, "data")
        if segment.tier == "hot" and segment.damaged and not segment.place.read_fs.exists(path):
            raise FileNotFoundError(2, "the segment has gone", path)
    return block


def _lens(block: Slots) -> I64:
    """Bytes of each slot's frame."""
    if isinstance(block, Sealed):
        return block.view.lens.astype(np.int64)
    assert isinstance(block, TailRun)
    return np.frombuffer(block.lens[:], np.uint32).astype(np.int64)


def _first(count: int, holds: Callable[[int], bool]) -> int:
    """First index for which `holds`, which is false and then true."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


# --- from a look to a cut ---------------------------------------------------------------------------------------------


def look_at(
    files: Files,
    cold: Files | None,
    *,
    wanted: Wanted = reader.everything,
    now_ms: int = 0,
    use: Callable[[Looked], None] = lambda _: None,
) -> Looked:
    """The wanted topics of a data directory; what the operating system has against it, as one sentence."""
    with readable(files.shown()):
        store = None if cold is None else (cold.fs, cold.top)
        return reader.look(files.fs, files.top, cold=store, wanted=wanted, now_ms=now_ms, use=use)


def cut_of(looked: Looked, topic: TopicLog, files: Files, cold: Files | None, *, now_ms: int) -> TopicCut:
    """The topic as of now: floors that TTL and the byte cap ask for are applied as the server would."""
    if cold is None and any(s.view.tier == "cold" for s in topic.sealed.from_seq(topic.floors.earliest_seq)):
        raise ConfigError(
            f"topic {topic.name!r} has segments in the cold store: give its root as option coldPath, "
            "or set TOPICS_COLD_DIR"
        )
    _apply_retention(looked, topic, max(now_ms, looked.snapshot.clock_ms if looked.snapshot else 0, topic.last_ts))
    head = reader.head_in_files(looked, topic)
    earliest, floor = min(topic.earliest_seq, head + 1), min(topic.evict_floor, head + 1)
    lost = [LostSeqs(lo, hi, reason) for lo, hi, reason in topic.lost if lo <= head]
    in_memory = looked.replay.ephemeral_losses.get(topic.id)
    if in_memory is not None and in_memory < floor:
        # No floor: while the server runs the records are there, and nobody may pass them without a word.
        lost.insert(0, LostSeqs(in_memory, floor - 1, "restart"))
        earliest = floor = in_memory
    floors = topic.floors
    return TopicCut(
        name=topic.name,
        topic_id=topic.id,
        epoch=topic.epoch,
        ancestors=topic.ancestors,
        head_seq=head,
        earliest_seq=earliest,
        evict_floor=floor,
        causes=(
            ("cap", floors.cap_lost),
            ("ttl", floors.ttl_lost),
            ("source_trim", floors.trim_lost),
            ("restart", floors.restart_lost),
        ),
        lost=tuple(lost),
        blocks=tuple(_blocks_of(looked, topic, files, cold, head)),
        dead=tuple(dead_ranges(topic)),
        missing=tuple(reader.missing(looked, topic)),
        instance=looked.snapshot.instance if looked.snapshot is not None else "",
    )


def _apply_retention(looked: Looked, topic: TopicLog, now_ms: int) -> None:
    reader.load_indexes(topic)
    evict = due(topic, now_ms)
    while topic.awaiting:
        reader.load_indexes(topic)
        evict = due(topic, now_ms)
    if evict is not None and not reader.rests_on_missing(looked, topic, evict.evict_floor - 1):
        apply(looked.state, evict)


def _blocks_of(looked: Looked, topic: TopicLog, files: Files, cold: Files | None, head: int) -> Iterator[Block]:
    """Where the records up to `head` lie. A sealed segment that no mark has made official counts as far as it was
    found: its server may be writing it still."""
    loaded = looked.attach.loaded.get(topic.id)
    active = loaded.active.segment if loaded is not None and loaded.active is not None else None
    sealed_to = looked.attach.marks.expected(topic.id, looked.item(topic.id)).sealed_to
    given_active = False
    for block in stored_blocks(topic):
        if block.first_seq > head:
            return
        if isinstance(block.source, Sealed):
            is_official = block.first_seq <= sealed_to
            yield _segment_block(block.source, files, cold, is_sealed=is_official)
            continue
        for run in block.source:
            for file, lo, hi in _places(run):
                if file == IN_ACTIVE and active is not None and not given_active:
                    given_active = True
                    yield SegmentBlock(
                        root=files.root,
                        stem=_stem(files, active.place.file(active.first_seq, "data")),
                        first_seq=active.first_seq,
                        count=active.count,
                        bytes=active.data_len,
                        is_sealed=False,
                    )
                elif file not in (IN_ACTIVE, RESIDENT):
                    path = files.relative(looked.files.get(file).path)
                    frames = _log_block(files.root, path, run, lo, hi, (topic.floors.earliest_seq, head))
                    if frames.count:
                        yield frames


def _places(run: TailRun) -> Iterator[tuple[int, int, int]]:
    """File and half-open slots of each stretch of the run that lies in one file."""
    found = np.frombuffer(run.locs[:], np.uint64) >> _FILE_BITS
    bounds = [0, *(np.flatnonzero(np.diff(found)) + 1).tolist(), len(found)]
    return ((int(found[lo]), lo, hi) for lo, hi in pairwise(bounds))


def _log_block(root: str, path: str, run: TailRun, lo: int, hi: int, seqs: tuple[int, int]) -> LogBlock:
    """The live records among these slots whose seqs lie in a range with both ends."""
    slots = run.live_slots(max(lo, seqs[0] - run.first_seq), min(hi, seqs[1] + 1 - run.first_seq))
    return LogBlock(
        root=root,
        path=path,
        seqs=(slots + run.first_seq).tobytes(),
        offsets=np.frombuffer(run.locs[:], np.uint64)[slots].astype(np.uint32).astype(np.int64).tobytes(),
        lengths=np.frombuffer(run.lens[:], np.uint32)[slots].astype(np.int64).tobytes(),
        ts=np.frombuffer(run.ts[:], np.uint64)[slots].astype(np.int64).tobytes(),
    )


def _segment_block(sealed: Sealed, files: Files, cold: Files | None, *, is_sealed: bool) -> SegmentBlock:
    segment = cast(SealedSegment, sealed.view)
    if segment.tier == "cold":
        assert cold is not None
        files, folder = cold, f"{names.TOPICS_DIR}/{names.topic_dir_name(segment.place.topic_id)}"
        stem = _stem(files, f"{folder}/{names.segment_name(segment.first_seq, 'data')}")
    else:
        stem = _stem(files, segment.place.file(segment.first_seq, "data"))
    return SegmentBlock(
        root=files.root,
        stem=stem,
        first_seq=segment.first_seq,
        count=segment.count,
        bytes=segment.data_len,
        is_sealed=is_sealed,
        tier=segment.tier,
        live=sealed.live,
    )


def _stem(files: Files, path: str) -> str:
    return files.relative(path).removesuffix(".data")


def cold_only_topics(files: Files, wanted: Wanted) -> Iterator[TopicLog]:
    """Topics of a directory that holds segments and nothing else: named by their id, all segments sealed."""
    env = SegmentEnv(files.fs, files.path(names.TOPICS_DIR))
    for folder in files.list(names.TOPICS_DIR):
        topic_id = names.parse_topic_dir(folder)
        if topic_id is None or not wanted(recovered_name(topic_id)):
            continue
        name = recovered_name(topic_id)
        topic = TopicLog(topic_id=topic_id, name=name, epoch=0, config=DEFAULT_CONFIG, created_ts=0)
        place = TopicDir(env, topic_id, name=name)
        for first, stem in sorted(segment_stems(files, f"{names.TOPICS_DIR}/{folder}").items()):
            count, size = files.size(f"{stem}.idx") // ENTRY_BYTES, files.size(f"{stem}.data")
            place.use_name(first, "data", f"{stem.rpartition('/')[2]}.data")
            segment = SealedSegment(place, first_seq=first, count=count, data_len=size)
            load_sealed(topic, segment, dead=[], totals=(count, 0))
            topic.sealed[len(topic.sealed) - 1].doubt()
        if len(topic.sealed):
            topic.floors.earliest_seq = topic.sealed[0].first_seq
            yield topic


def cold_only_cut(topic: TopicLog, files: Files) -> TopicCut:
    return TopicCut(
        name=topic.name,
        topic_id=topic.id,
        epoch=0,
        head_seq=topic.head,
        earliest_seq=topic.earliest_seq,
        evict_floor=1,
        blocks=tuple(_segment_block(sealed, files, None, is_sealed=True) for sealed in topic.sealed),
    )


def segment_stems(files: Files, folder: str) -> dict[int, str]:
    """Paths without suffix of the segments in a folder that have a `.data` file, by first seq."""
    parts = list_topic_dir(files.fs, files.path(folder)).parts
    return {first: f"{folder}/{_stem(files, found['data'])}" for first, found in parts.items() if "data" in found}


# --- which directory --------------------------------------------------------------------------------------------------


@contextmanager
def readable(path: str) -> Iterator[None]:
    """What the operating system or a store has against a path, as one sentence. An absent file is the caller's."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"path {path} cannot be read: {error.strerror or error}") from None


def layout(files: Files) -> Literal["data", "cold"]:
    """Which kind of directory this is, by what lies in it."""
    with readable(files.shown()):
        listed = set(files.list(""))
    if names.META_DIR in listed or names.WAL_DIR in listed:
        return "data"
    if names.TOPICS_DIR in listed:
        return "cold"
    why = "it holds neither meta/ and wal/ nor topics/" if listed else "it is empty or does not exist"
    raise ConfigError(f"path {files.shown()} is no data directory: {why}")
