"""The small structures: tail runs, tail tags, lost ranges, recent and resident chunks, the idempotency window."""

from __future__ import annotations

from array import array
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.core.idempotency import IdemWindow, WriteMemo
from topics.core.reading.recent import CHUNK_BYTES, RecentCache, Resident
from topics.core.retention.floors import LostRanges
from topics.core.slots.tail import CHUNK_SEQS, Tail, TailRun, TailTags, locations
from topics.model.names import MatchOp, TagMatch
from topics.model.ops import DELETED, HAS_META, HAS_NODE, HAS_TAG, HOPS_SHIFT, LostReason

# --- tail ------------------------------------------------------------------------------------------------------------


def extend(tail: Tail, first_seq: int, count: int, *, flags: int = 0) -> TailRun:
    run = tail.run_for_append(first_seq)
    run.extend(
        locs=array("Q", range(first_seq, first_seq + count)),
        lens=array("I", [1] * count),
        ts=array("Q", range(first_seq, first_seq + count)),
        sizes=array("I", range(first_seq, first_seq + count)),
        flags=array("B", [flags] * count),
    )
    return run


def slots(tail: Tail) -> dict[int, int]:
    return {run.first_seq + at: run.sizes[at] for run in tail.runs for at in range(run.count)}


def test_a_slot_costs_at_most_32_bytes() -> None:
    run = extend(Tail(), 1, 1000)
    columns = (run.locs, run.lens, run.ts, run.sizes, run.flags)
    assert sum(column.itemsize for column in columns) == 25


def test_consecutive_appends_share_a_run_and_a_gap_starts_one() -> None:
    tail = Tail()
    extend(tail, 1, 3)
    extend(tail, 4, 2)
    extend(tail, 100, 1)
    extend(tail, 50, 2)
    assert [(run.first_seq, run.next_seq) for run in tail.runs] == [(1, 6), (50, 52), (100, 101)]
    assert tail.find(5) is tail.runs[0]
    assert tail.find(6) is None
    assert tail.find(0) is None
    assert tail.find(50) is tail.runs[1]
    assert tail.find(101) is None


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6)), min_size=1, max_size=5),
    st.integers(0, 30),
    st.integers(0, 15),
)
def test_cutting_slots_out_leaves_all_others(pieces: list[tuple[int, int]], lo: int, length: int) -> None:
    tail, seq = Tail(), 1
    for gap, count in pieces:
        seq += gap
        extend(tail, seq, count, flags=DELETED if seq % 2 else 0)
        seq += count
    before = slots(tail)
    tail.cut_out(lo, lo + length)
    assert slots(tail) == {at: size for at, size in before.items() if not lo <= at < lo + length} or lo <= min(before)
    assert all(run.count for run in tail.runs)
    assert all(a.next_seq <= b.first_seq for a, b in pairwise(tail.runs))
    for run in tail.runs:
        assert run.deleted == sum(1 for flag in run.flags if flag & DELETED)


def test_a_tail_grows_while_somebody_looks_at_its_memory() -> None:
    tail = Tail()
    run = extend(tail, 1, 3)
    view = np.frombuffer(run.ts, np.uint64)
    extend(tail, 4, 3)
    assert view.tolist() == [1, 2, 3]
    assert run.ts.tolist() == [1, 2, 3, 4, 5, 6]
    held = np.frombuffer(run.sizes, np.uint32)
    run.push(7, 7, 7, 7, DELETED)
    assert held.tolist() == [1, 2, 3, 4, 5, 6]
    assert [len(c) for c in (run.locs, run.lens, run.ts, run.sizes, run.flags)] == [7] * 5
    assert (run.sizes[6], run.deleted) == (7, 1)


@pytest.mark.parametrize("count", [1, 40])
def test_a_location_is_a_file_and_an_offset(count: int) -> None:
    locs = locations(7, 100, array("I", range(count)))
    assert [(loc >> 32, loc & 0xFFFF_FFFF) for loc in locs] == [(7, 100 + at) for at in range(count)]


@given(st.lists(st.booleans(), min_size=1, max_size=300), st.data())
def test_searches_among_slots_agree_with_looking_at_each(dead: list[bool], data: st.DataObject) -> None:
    run = TailRun(1)
    count = len(dead)
    sizes = [at % 7 for at in range(count)]
    run.extend(
        locs=array("Q", [0] * count),
        lens=array("I", [0] * count),
        ts=array("Q", range(count)),
        sizes=array("I", sizes),
        flags=array("B", [DELETED if gone else 0 for gone in dead]),
    )
    lo = data.draw(st.integers(0, count - 1))
    hi = data.draw(st.integers(lo, count))
    alive = [at for at in range(lo, hi) if not dead[at]]
    rest = [at for at in range(lo, count) if not dead[at]]
    if run.deleted or hi > lo:
        assert run.first_live(lo, hi) == (alive[0] if alive else hi)
        assert run.last_live(lo, hi) == (alive[-1] if alive else lo - 1)
    assert run.live_totals(lo, hi) == (len(alive), sum(sizes[at] for at in alive))
    nth = data.draw(st.integers(1, count + 1))
    assert run.nth_live(lo, nth) == ((rest[nth - 1], nth) if nth <= len(rest) else (-1, len(rest)))
    need = data.draw(st.integers(1, 400))
    freed, slot = 0, -1
    for at in rest:
        freed += sizes[at]
        if freed >= need:
            slot = at
            break
    assert run.slot_freeing(lo, need) == (slot, freed)
    assert run.expired(lo) == lo


# --- tags ------------------------------------------------------------------------------------------------------------

tags = st.sampled_from([b"a", b"ab", b"abc", b"b", b"", None])


@given(
    st.lists(
        st.one_of(
            st.lists(tags, min_size=1, max_size=5),
            st.tuples(st.sampled_from(["Eq", "Glob"]), st.sampled_from(["a", "ab", "", "zz"]), st.integers(0, 100)),
        ),
        max_size=30,
    )
)
def test_tail_tags_agree_with_a_list(steps: list[list[bytes | None] | tuple[MatchOp, str, int]]) -> None:
    index, seq = TailTags(), 1
    plain: list[tuple[int, bytes]] = []
    for step in steps:
        if isinstance(step, list):
            index.add(seq, step)
            plain += [(seq + at, tag) for at, tag in enumerate(step) if tag is not None]
            seq += len(step)
        else:
            op, value, percent = step
            match, below = TagMatch(op, value), 1 + seq * percent // 100
            chosen = [at for at, tag in plain if at < below and match.matches(tag)]
            assert sorted(index.take(match, below=below)) == chosen
            plain = [entry for entry in plain if entry[0] not in chosen]


def test_tags_leave_with_their_chunk() -> None:
    index = TailTags()
    for at in range(3):
        index.add(1 + at * CHUNK_SEQS, [b"x"] * CHUNK_SEQS)
    index.drop_below(CHUNK_SEQS + 1)
    assert len(index) == 2 * CHUNK_SEQS
    index.drop_below(10 * CHUNK_SEQS)
    assert len(index) == 0


# --- lost ranges -----------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.integers(0, 5), st.sampled_from(["restart", "cap", "source_trim"])), max_size=8
    ),
    st.integers(0, 40),
)
def test_lost_ranges_agree_with_a_dict(added: list[tuple[int, int, LostReason]], floor: int) -> None:
    lost, plain = LostRanges(), {}
    for lo, length, reason in added:
        pieces = lost.add(lo, lo + length, reason)
        new = {seq for seq in range(lo, lo + length + 1) if seq not in plain}
        assert {seq for a, b in pieces for seq in range(a, b + 1)} == new
        plain.update(dict.fromkeys(new, reason))
    ranges = list(lost)
    assert {seq: r.reason for r in ranges for seq in range(r.lo, r.hi + 1)} == plain
    assert all(a.hi + 1 < b.lo or (a.hi < b.lo and a.reason != b.reason) for a, b in pairwise(ranges))
    for seq in range(1, 40):
        found = lost.find(seq)
        assert (None if found is None else found.reason) == plain.get(seq)
        assert lost.next_lo(seq) == min((r.lo for r in ranges if r.lo >= seq), default=None)
    taken = lost.absorb(floor)
    for one in taken:
        assert one.lo <= floor
        floor = max(floor, one.hi + 1)
    assert all(r.lo > floor for r in lost)


# --- recent and resident ---------------------------------------------------------------------------------------------


def frames(count: int, size: int) -> tuple[bytes, array[int], array[int]]:
    body = bytes(size)
    return body * count, array("I", [at * size for at in range(count)]), array("B", [HAS_TAG | HAS_META] * count)


def test_the_cache_keeps_to_its_budget_and_drops_the_oldest_of_all_topics() -> None:
    cache = RecentCache(50_000)
    for at in range(100):
        cache.add(at % 3, 1 + at // 3 * 10, *frames(10, 100))
        assert cache.bytes <= 50_000
    assert cache.find(0, 1) is None
    assert all(cache.find(topic, 321) is not None for topic in range(3))
    for topic in range(3):
        cache.drop_topic(topic)
    assert cache.bytes == 0


def test_a_budget_of_zero_keeps_nothing() -> None:
    cache = RecentCache(0)
    cache.add(1, 1, *frames(1, 50))
    assert (cache.find(1, 1), cache.bytes) == (None, 0)


def test_small_writes_share_a_chunk_and_large_ones_are_not_copied() -> None:
    cache = RecentCache(1 << 20)
    for seq in range(1, 101):
        cache.add(1, seq, *frames(1, 100))
    chunk = cache.find(1, 1)
    assert chunk is not None
    assert chunk is cache.find(1, 100)
    large, offs, flags = frames(10, 10_000)
    cache.add(1, 101, large, offs, flags)
    found = cache.find(1, 105)
    assert found is not None
    assert found.buf is large
    for seq in range(111, 111 + 3 * CHUNK_BYTES // 5_000):
        cache.add(1, seq, *frames(1, 5_000))
    assert all(len(kept.buf) <= max(CHUNK_BYTES, len(large)) for kept in cache._topics[1].chunks)


def test_a_run_stays_right_while_its_chunk_grows_or_is_dropped() -> None:
    cache = RecentCache(1 << 20)
    cache.add(1, 1, b"a" * 64, array("I", [0]), array("B", [HAS_NODE | 3 << HOPS_SHIFT]))
    chunk = cache.find(1, 1)
    assert chunk is not None
    run = chunk.run(1, 2)
    held = memoryview(run.buf)
    cache.add(1, 2, b"b" * 64, array("I", [0]), array("B", [0]))
    cache.drop_topic(1)
    assert (bytes(held[:64]), list(run.body_offs), run.flags) == (b"a" * 64, [14], bytes([HAS_NODE]))


def test_resident_records_leave_only_from_the_front() -> None:
    kept = Resident()
    for at in range(5):
        kept.add(1 + at * 10, *frames(10, 1000))
    kept.drop_below(11)
    assert kept.find(10) is None
    assert kept.find(11) is not None
    kept.drop_below(100)
    assert kept.bytes == 0


# --- idempotency -----------------------------------------------------------------------------------------------------


def test_keys_leave_with_time_and_a_reused_key_keeps_its_newest_memo() -> None:
    window = IdemWindow()
    window.remember(b"a", WriteMemo(100, 1, 1, 1))
    window.remember(b"b", WriteMemo(150, 2, 1, 2))
    assert window.find(b"a", now=200, window_ms=100) == WriteMemo(100, 1, 1, 1)
    assert window.find(b"a", now=201, window_ms=100) is None
    window.remember(b"a", WriteMemo(201, 3, 1, 3))
    assert window.find(b"a", now=251, window_ms=100) == WriteMemo(201, 3, 1, 3)
    assert len(window) == 1
    again = IdemWindow.restored(list(window.items()))
    assert again.find(b"a", now=301, window_ms=100) is not None
    assert again.find(b"a", now=302, window_ms=100) is None
