"""How records become batches: pure, with a clock of the test's own."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topics.client.producing.batching import Batch, Batches, Delivery, ProducerOptions
from topics.errors import InvalidRequest, RecordTooLarge, Throttled, Unreachable


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def batches(clock: Clock | None = None, **options: float) -> Batches:
    return Batches(ProducerOptions(**options), now=clock or Clock())  # type: ignore[arg-type]


def test_a_record_waits_for_company_as_long_as_it_may() -> None:
    clock = Clock()
    made = batches(clock, linger_ms=5)
    assert made.wait_s() is None
    assert made.add("a", b"1", None)
    assert not made.add("a", b"2", None)
    assert (made.due(), made.wait_s()) == (None, 0.005)
    clock.now_s = 0.005
    batch = made.due()
    assert batch is not None
    assert batch.pieces == [b"1", b"2"]


def test_a_full_batch_does_not_wait() -> None:
    made = batches(linger_ms=5000, batch_records=2)
    made.add("a", b"1", None)
    assert made.add("a", b"2", None)
    assert made.due() is not None


def test_bytes_count_until_a_batch_is_settled() -> None:
    made = batches(linger_ms=0)
    made.add("a", b"12345", None)
    batch = made.due()
    assert batch is not None
    assert made.bytes == 6
    made.finished(batch)
    assert made.bytes == 0
    assert made.seal_all() == []


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 70))),
    st.integers(1, 100),
    st.integers(1, 300),
)
def test_per_topic_everything_comes_out_once_and_in_order(
    given: list[tuple[str, int]], batch_records: int, batch_bytes: int
) -> None:
    made = batches(linger_ms=0, batch_records=batch_records, batch_bytes=batch_bytes)
    went_in: dict[str, list[bytes]] = {}
    numbers = iter(range(10**6))
    for topic, count in given:
        pieces = [b"%d" % next(numbers) for _ in range(count)]
        went_in.setdefault(topic, []).extend(pieces)
        if count == 1:
            made.add(topic, pieces[0], None)
        at = 0 if count > 1 else count
        while at < count:
            at = made.add_some(topic, pieces, at, None)
    came_out: dict[str, list[bytes]] = {}
    made.seal_all()
    while (batch := made.due()) is not None:
        assert 0 < len(batch.pieces) <= batch_records
        came_out.setdefault(batch.topic, []).extend(batch.pieces)
        made.finished(batch)
    assert came_out == went_in
    assert made.bytes == 0


@given(st.integers(2, 50), st.sets(st.integers(0, 49)))
def test_halves_tell_the_same_people_of_the_same_records(count: int, reported: set[int]) -> None:
    told: list[tuple[int, int]] = []

    def teller(number: int) -> object:
        return lambda delivery: told.append((number, delivery.seq))

    batch = Batch("a")
    batch.pieces = [b"%d" % n for n in range(count)]
    batch.reports = [(n, teller(n)) for n in sorted(reported) if n < count]  # type: ignore[misc]
    left, right = batch.halves()
    assert left.pieces + right.pieces == batch.pieces
    left.committed(100)
    right.committed(100 + len(left.pieces))
    assert told == [(n, 100 + n) for n in sorted(reported) if n < count]


def test_only_a_refusal_that_one_record_may_cause_is_worth_halving() -> None:
    batch = Batch("a")
    batch.pieces = [b"1", b"2"]
    assert batch.is_worth_halving(InvalidRequest("x"))
    assert batch.is_worth_halving(RecordTooLarge("x"))
    assert not batch.is_worth_halving(Throttled("x"))
    assert not batch.is_worth_halving(Unreachable("x", sent=True))
    batch.pieces = [b"1"]
    assert not batch.is_worth_halving(InvalidRequest("x"))


def test_a_failure_that_everybody_was_told_of_is_nobody_elses() -> None:
    told: list[Delivery] = []
    batch = Batch("a")
    batch.pieces = [b"1", b"2"]
    batch.reports = [(0, told.append)]
    assert batch.failed(InvalidRequest("x"))
    batch.reports = [(0, told.append), (1, told.append)]
    assert not batch.failed(InvalidRequest("x"))
    assert [delivery.seq for delivery in told] == [0, 0, 0]
