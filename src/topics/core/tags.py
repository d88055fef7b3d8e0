"""Tail tags: which tail seqs carry which tag. Sealed segments answer for themselves (`SegmentView.tag_slots`).

Appends only put the batch's tags aside; a chunk is indexed when the first match delete asks for it, so topics that are
never deleted from pay nothing. A chunk leaves whole when all its seqs have left the tail. Entries of dead seqs may stay
until then: whoever takes entries checks that they are live. What always holds: every live tagged tail seq is here once;
seqs ascend within a chunk.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable

from topics.model.match import TagMatch

CHUNK_SEQS = 4096  # tagged seqs per chunk: what may linger after its records have left, and what a Glob sorts at a time


class _Chunk:
    __slots__ = ("_index", "_keys", "_seqs", "_tags", "count", "last_seq")

    def __init__(self) -> None:
        self.count = 0
        self.last_seq = 0
        self._seqs: array[int] = array("Q")  # these two: not yet indexed
        self._tags: list[bytes] = []
        self._index: dict[bytes, list[int]] = {}
        self._keys: list[bytes] | None = None  # sorted keys of the index, while they are right

    def add(self, seqs: Iterable[int], tags: list[bytes]) -> None:
        self._seqs.extend(seqs)
        self._tags.extend(tags)
        self.count += len(tags)
        self.last_seq = self._seqs[-1]

    def take(self, match: TagMatch, wanted: bytes, below: int) -> list[int]:
        self._settle()
        if match.op == "Eq":
            return self._take_tag(wanted, below)
        taken: list[int] = []
        for tag in self._tags_with_prefix(wanted):
            taken += self._take_tag(tag, below)
        return taken

    def find(self, match: TagMatch, wanted: bytes, below: int) -> list[int]:
        self._settle()
        tags = [wanted] if match.op == "Eq" else self._tags_with_prefix(wanted)
        return [seq for tag in tags for seq in self._index.get(tag, ()) if seq < below]

    def _settle(self) -> None:
        if not self._tags:
            return
        index, known = self._index, len(self._index)
        for tag, seq in zip(self._tags, self._seqs, strict=True):
            found = index.get(tag)
            if found is None:
                index[tag] = [seq]
            else:
                found.append(seq)
        if len(index) != known:
            self._keys = None
        self._seqs = array("Q")
        self._tags = []

    def _take_tag(self, tag: bytes, below: int) -> list[int]:
        """All entries below the bound: they die now or were dead before. Empty tags vanish."""
        seqs = self._index.get(tag)
        if seqs is None:
            return []
        if seqs[-1] < below:
            del self._index[tag]
            self._keys = None
            return seqs
        taken = [seq for seq in seqs if seq < below]
        if taken:
            self._index[tag] = [seq for seq in seqs if seq >= below]
        return taken

    def _tags_with_prefix(self, prefix: bytes) -> list[bytes]:
        if self._keys is None:
            self._keys = sorted(self._index)
        keys = self._keys
        at = end = bisect_left(keys, prefix)
        while end < len(keys) and keys[end].startswith(prefix):
            end += 1
        return keys[at:end]


class TailTags:
    __slots__ = ("_chunks",)

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []

    def __len__(self) -> int:
        """Entries kept, dead ones included."""
        return sum(chunk.count for chunk in self._chunks)

    def add(self, first_seq: int, tags: list[bytes | None]) -> None:
        """The tags of consecutive records; None where a record has none."""
        if None not in tags:
            self._chunk_for(first_seq).add(range(first_seq, first_seq + len(tags)), tags)  # type: ignore[arg-type]
            return
        given = [(seq, tag) for seq, tag in enumerate(tags, first_seq) if tag is not None]
        if given:
            self._chunk_for(first_seq).add([seq for seq, _ in given], [tag for _, tag in given])

    def _chunk_for(self, first_seq: int) -> _Chunk:
        """The open chunk; a new one when it is full, or when recovery fills in older records."""
        if self._chunks:
            chunk = self._chunks[-1]
            if chunk.count < CHUNK_SEQS and chunk.last_seq < first_seq:
                return chunk
        chunk = _Chunk()
        self._chunks.append(chunk)
        return chunk

    def take(self, match: TagMatch, *, below: int) -> list[int]:
        """Remove and return the entries below the bound that match; unordered, dead seqs perhaps among them."""
        wanted = match.value.encode()
        taken: list[int] = []
        for chunk in self._chunks:
            taken += chunk.take(match, wanted, below)
        return taken

    def find(self, match: TagMatch, *, below: int) -> list[int]:
        """What `take` would return."""
        wanted = match.value.encode()
        return [seq for chunk in self._chunks for seq in chunk.find(match, wanted, below)]

    def drop_below(self, seq: int) -> None:
        """The tail has no slot below `seq` any more."""
        if any(chunk.last_seq < seq for chunk in self._chunks):
            self._chunks = [chunk for chunk in self._chunks if chunk.last_seq >= seq]
