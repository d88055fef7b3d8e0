"""Lines: the jobs that are ready and known, in the order in which they are handed out
(`docs/spec/semantics.md#sec-16-5` and `docs/spec/semantics.md#sec-16-13`).

A rank is a job's place: its priority, highest first, then its seq, as one integer. Without a rule about tags there is
one line, and behind it the fresh jobs that nobody has looked at. With one there is a line for each tag; those that may
give a job have a turn, in order of their first rank or, where tags take turns, of when they were served. A tag that may
not give one is parked until something of it changes. Entries are not removed when a job goes: `is_ready` tells.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, NamedTuple

from topics.core.queue.queue_rules import QueueRules, TokenBucket
from topics.limits import JOB_PRIORITY_MAX

Tag = bytes | None
_SEQ_BITS: Final = 64
_SEQ_MASK: Final = (1 << _SEQ_BITS) - 1
BEFORE_FRESH: Final = (JOB_PRIORITY_MAX + 1) << _SEQ_BITS
"""Ranks below it go before jobs without fields, which have priority 0."""
EVERY_RANK: Final = 1 << 80
BUCKETS: Final = 1024  # of tags, before full ones are dropped


def rank(priority: int, seq: int) -> int:
    return (JOB_PRIORITY_MAX - priority) << _SEQ_BITS | seq


class TakenJob(NamedTuple):
    seq: int
    tag: Tag


class Lines:
    __slots__ = (
        "_begun",
        "_buckets_max",
        "_lines",
        "_made",
        "_parked",
        "_refills",
        "_returned",
        "_rules",
        "_running",
        "_served",
        "_tag_buckets",
        "_turn_of",
        "_turns",
    )

    def __init__(self, rules: QueueRules) -> None:
        self._rules = rules
        self._lines: dict[Tag, list[int]] = {}
        self._turns: list[tuple[int, int, Tag]] = []  # heap: place of a line, number of the entry
        self._turn_of: dict[Tag, int] = {}  # the place that counts; entries with another are old
        self._parked: set[Tag] = set()
        self._made = 0
        self._served: dict[Tag, int] = {}  # fair: when the tag was served last, as a count of hand-outs
        self._running: dict[bytes, int] = {}  # jobs in flight of a tag
        self._begun: dict[bytes, int] = {}  # serial: the job of a tag that was handed out and is not done
        self._returned: dict[bytes, int] = {}  # ... if it is ready again: its rank
        self._tag_buckets: dict[bytes, TokenBucket] = {}
        self._buckets_max = BUCKETS
        self._refills: list[tuple[int, bytes]] = []  # heap: when a parked tag may go on

    # --- in -------------------------------------------------------------------------------------------------------

    def put(self, place: int, tag: Tag) -> None:
        """A job is ready."""
        if not self._rules.by_tag:
            tag = None
        elif tag is not None and self._begun.get(tag) == place & _SEQ_MASK:
            self._returned[tag] = place
            self._lines.setdefault(tag, [])
            self._wake(tag)
            return
        line = self._lines.get(tag)
        if line is None:
            line = self._lines[tag] = []
        heappush(line, place)
        if line[0] == place and tag not in self._parked:
            self._give_turn(tag)

    def _give_turn(self, tag: Tag) -> None:
        first = self._first(tag)
        if first is None:
            return
        place = first
        if self._rules.fair:
            place = first >> _SEQ_BITS << _SEQ_BITS | self._served.get(tag, 0)
        if self._turn_of.get(tag) != place:
            self._turn_of[tag] = place
            self._made += 1
            heappush(self._turns, (place, self._made, tag))

    def _first(self, tag: Tag) -> int | None:
        if tag is not None and tag in self._returned:
            return self._returned[tag]
        line = self._lines.get(tag)
        return line[0] if line else None

    def _wake(self, tag: Tag) -> None:
        """Something about the tag changed: it may give a job again."""
        self._parked.discard(tag)
        self._give_turn(tag)

    # --- out ------------------------------------------------------------------------------------------------------

    def take(self, now: int, below: int, is_ready: Callable[[int], bool]) -> TakenJob | None:
        """The next job with a rank below this one that may be handed out; it is out of line."""
        while self._turns:
            place, _, tag = self._turns[0]
            if self._turn_of.get(tag) != place:
                heappop(self._turns)
                continue
            first = self._first_ready(tag, is_ready)
            if first is None or self._is_moved(tag, place, first):
                continue
            if first >= below:
                return None
            seq = first & _SEQ_MASK
            if tag is not None and self._is_held_up(tag, seq, now):
                heappop(self._turns)
                del self._turn_of[tag]
                self._parked.add(tag)
                continue
            self._take_first(tag)
            return TakenJob(seq, tag)
        return None

    def _first_ready(self, tag: Tag, is_ready: Callable[[int], bool]) -> int | None:
        """The line's first job that is still there; without any the line ends, and its turn with it."""
        while (first := self._first(tag)) is not None:
            if is_ready(first & _SEQ_MASK):
                return first
            self._drop_first(tag)
        heappop(self._turns)
        del self._turn_of[tag]
        self._lines.pop(tag, None)
        return None

    def _is_moved(self, tag: Tag, place: int, first: int) -> bool:
        """The line begins elsewhere than its turn says: put the turn right."""
        right = first >> _SEQ_BITS << _SEQ_BITS | self._served.get(tag, 0) if self._rules.fair else first
        if right == place:
            return False
        heappop(self._turns)
        del self._turn_of[tag]
        self._give_turn(tag)
        return True

    def _drop_first(self, tag: Tag) -> int:
        if tag is not None and tag in self._returned:
            return self._returned.pop(tag)
        line = self._lines[tag]
        first = heappop(line)
        while line and line[0] == first:  # released, leased and over again: one job still
            heappop(line)
        return first

    def _take_first(self, tag: Tag) -> None:
        self._drop_first(tag)
        heappop(self._turns)
        del self._turn_of[tag]
        if self._rules.fair:
            self._made += 1
            self._served[tag] = self._made
        if self._first(tag) is not None:
            self._give_turn(tag)
        else:
            self._lines.pop(tag, None)

    # --- what holds a tag up --------------------------------------------------------------------------------------

    def _is_held_up(self, tag: bytes, seq: int, now: int) -> bool:
        rules = self._rules
        if rules.serial and self._begun.get(tag, seq) != seq:
            return True
        if rules.tag_concurrency and self._running.get(tag, 0) >= rules.tag_concurrency:
            return True
        if rules.tag_rate is not None:
            bucket = self._tag_buckets.get(tag)
            if bucket is None:
                bucket = self._tag_buckets[tag] = TokenBucket(rules.tag_rate, now)
            if bucket.tokens(now) < 1:
                heappush(self._refills, (bucket.next_at(), tag))
                return True
            bucket.take()
        return False

    def refill(self, now: int) -> bool:
        """Tags whose rate allows a job again get their turn; did any?"""
        any_woken = False
        while self._refills and self._refills[0][0] <= now:
            _, tag = heappop(self._refills)
            if tag in self._parked:
                self._wake(tag)
                any_woken = True
        if len(self._tag_buckets) > self._buckets_max:
            self._drop_full_buckets(now)
        return any_woken

    def _drop_full_buckets(self, now: int) -> None:
        """A full bucket says no more than none."""
        rate = self._rules.tag_rate
        self._tag_buckets = {
            tag: bucket
            for tag, bucket in self._tag_buckets.items()
            if rate is not None and bucket.tokens(now) < rate.jobs
        }
        self._buckets_max = max(2 * len(self._tag_buckets), BUCKETS)

    def next_refill(self) -> int | None:
        return self._refills[0][0] if self._refills else None

    # --- the life of a job ----------------------------------------------------------------------------------------

    def leased(self, seq: int, tag: Tag) -> None:
        if tag is None or not self._rules.by_tag:
            return
        self._running[tag] = self._running.get(tag, 0) + 1
        if self._rules.serial:
            self._begun[tag] = seq
            self._returned.pop(tag, None)

    def unleased(self, tag: Tag) -> None:
        if tag is None or tag not in self._running:
            return
        left = self._running[tag] - 1
        if left:
            self._running[tag] = left
        else:
            del self._running[tag]
        self._wake(tag)

    def begun(self, seq: int, tag: Tag) -> None:
        """A job that was handed out before is known by its tag again: after a restart, or since the rule is new."""
        if tag is not None and self._rules.serial:
            self._begun.setdefault(tag, seq)

    def gone(self, seq: int, tag: Tag) -> None:
        """A job that was handed out is done, or taken away."""
        if tag is not None and self._begun.get(tag) == seq:
            del self._begun[tag]
            self._returned.pop(tag, None)
            self._wake(tag)
