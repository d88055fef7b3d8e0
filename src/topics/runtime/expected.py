"""What snapshot and marks together say of each topic's segments, before any of them is opened."""

from __future__ import annotations

from collections.abc import Iterable

from topics.formats.bodies import CkptMark, ConfigUpdate, EvictWatermark, TierMark, TopicDelete, TopicMark
from topics.formats.snapshot import TopicItem
from topics.formats.wal import WalColumns
from topics.storage.segments.loaded import Expected, Move


class Marks:
    """The newest mark of each topic, its highest floor, the last move of each segment, and the topics that the log
    deletes or gives another config. Feed it columns in replay order."""

    def __init__(self) -> None:
        self._topics: dict[int, TopicMark] = {}
        self._moves: dict[int, dict[int, Move]] = {}
        self._earliest: dict[int, int] = {}
        self.deleted: set[int] = set()
        self.reconfigured: set[int] = set()
        self.next_ckpt = 1

    def note(self, columns: WalColumns) -> None:
        for row, body in columns.bodies.items():
            if isinstance(body, EvictWatermark):
                topic_id = int(columns.topic_id[row])
                self._earliest[topic_id] = max(self._earliest.get(topic_id, 1), body.earliest_seq)
            elif isinstance(body, CkptMark):
                self.next_ckpt = max(self.next_ckpt, body.n + 1)
                self._topics.update({mark.id: mark for mark in body.topics})
            elif isinstance(body, TierMark):
                for move in body.moves:
                    self._moves.setdefault(move.id, {})[move.first] = Move(move.count, move.tier)
            elif isinstance(body, TopicDelete):
                self.deleted.add(int(columns.topic_id[row]))
            elif isinstance(body, ConfigUpdate):
                self.reconfigured.add(int(columns.topic_id[row]))

    def topic_ids(self) -> Iterable[int]:
        return self._topics.keys() | self._moves.keys()

    def cold_segments(self, items: Iterable[TopicItem]) -> int:
        """How many segments are recorded in the cold tier."""
        cold = {(item.id, row.first) for item in items for row in item.segments if row.tier == "cold"}
        for topic_id, moves in self._moves.items():
            for first, move in moves.items():
                (cold.add if move.tier == "cold" else cold.discard)((topic_id, first))
        return len(cold)

    def in_segments(self, items: Iterable[TopicItem]) -> dict[int, int]:
        """How far each topic lies in synced segments, by id."""
        reached = {item.id: item.ckpt_seq for item in items}
        return reached | {mark.id: max(mark.seq, reached.get(mark.id, 0)) for mark in self._topics.values()}

    def expected(self, topic_id: int, item: TopicItem | None) -> Expected:
        """A mark is newer than the snapshot, which was taken at an earlier position of the log."""
        mark = self._topics.get(topic_id)
        segments = () if item is None else item.segments
        open_row = next((row for row in segments if not row.sealed), None)
        active = None if open_row is None else (open_row.first, open_row.count, open_row.data_len)
        sealed_to = max((row.first + row.count - 1 for row in segments if row.sealed), default=0)
        ckpt_seq, earliest = (0, 1) if item is None else (item.ckpt_seq, item.earliest_seq)
        if mark is not None:
            active = None if mark.active is None else (mark.active.first, mark.active.count, mark.active.data_len)
            sealed_to = max(sealed_to, mark.sealed_to)
            ckpt_seq, earliest = max(ckpt_seq, mark.seq), max(earliest, mark.earliest_seq)
        earliest = max(earliest, self._earliest.get(topic_id, 1))
        return Expected(
            segments=[row for row in segments if row.sealed],
            active=active,
            sealed_to=sealed_to,
            ckpt_seq=ckpt_seq,
            earliest_seq=earliest,
            moves=self._moves.get(topic_id, {}),
        )
