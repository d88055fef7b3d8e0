"""One contract for every door: the embedded library, the blocking client and the asyncio client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import topics
from topics import DataLoss, Event, Gap, Json, limits
from topics.client import Client
from topics.errors import (
    InvalidRequest,
    NotAQueue,
    RouterCycle,
    RouterNotFound,
    ScheduleNotFound,
    TopicExistsIncompatible,
    TopicFull,
    TopicNotEmpty,
    TopicNotFound,
)
from topics.model.config import Durability
from topics.model.results import Record

pytestmark = pytest.mark.timeout(30)


def values(items: Iterator[Record | Gap]) -> list[Any]:
    return [item.value for item in items if isinstance(item, Record)]


# --- writing and reading ---------------------------------------------------------------------------------------------


def test_what_was_appended_is_read_with_everything_it_carries(door: Client, name: str) -> None:
    topic = door.topic(name)
    done = topic.append({"id": 1}, tag="tenant:1", node="n1", meta={"trace": "x"})
    assert (done.first_seq, done.last_seq, done.count, done.created, done.deduped) == (1, 1, 1, True, False)
    (record,) = topic.read()
    assert isinstance(record, Record)
    assert (record.seq, record.value, record.tag, record.node) == (1, {"id": 1}, "tenant:1", "n1")
    assert record.headers == {"trace": "x"}


def test_a_batch_gets_consecutive_seqs(door: Client, name: str) -> None:
    topic = door.topic(name)
    topic.append("first")
    done = topic.append_many([1, Event(2, tag="t"), None, "ü"], node="n")
    assert list(done.seqs) == [2, 3, 4, 5]
    assert [(r.value, r.tag, r.node) for r in topic.read(1) if isinstance(r, Record)] == [
        (1, None, "n"),
        (2, "t", "n"),
        (None, None, "n"),
        ("ü", None, "n"),
    ]


@pytest.mark.parametrize("text", [b"1.50", b'{"b":1,  "a":1e3,"b":2}', b'"\\ud800 \\\\ud800 \\ud83d\\ude00"'])
def test_json_text_comes_back_byte_for_byte(door: Client, name: str, text: bytes) -> None:
    topic = door.topic(name)
    topic.append(Json(text), meta=Json(b'{"m":%b}' % text))
    (record,) = topic.read()
    assert isinstance(record, Record)
    assert bytes(record.data) == text  # type: ignore[arg-type]
    assert bytes(record.meta) == b'{"m":%b}' % text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        object(),
        Json(b"{"),
        Json(b"NaN"),
        Json(b'"\\ud800'),
        {"inside": Json(b"oops")},
        {"inside": Json(b'"\xff"')},
        [Json(b"1],[2")],
        {"inside": Json(b'1}},{"data":{"two":2')},
    ],
)
def test_what_json_cannot_say_is_refused(door: Client, name: str, value: object) -> None:
    with pytest.raises(InvalidRequest):
        door.topic(name).append(value)
    with pytest.raises(TopicNotFound):
        door.topic(name).state()


@pytest.mark.parametrize("odd", [5, b"bytes"])
@pytest.mark.parametrize("where", ["tag", "node", "key"])
def test_a_tag_is_a_string(door: Client, name: str, where: str, odd: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"str"):
        door.topic(name).append(1, **{where: odd})
    with pytest.raises(InvalidRequest, match=r"str"):
        door.topic(name).append_many([1, 2], **{"key" if where == "tag" else where: odd})
    with pytest.raises(TopicNotFound):
        door.topic(name).state()


@pytest.mark.parametrize("odd", ["1", -1, 1.5])
def test_a_number_is_a_number(door: Client, name: str, odd: Any) -> None:
    topic = door.topic(name)
    topic.append(1)
    for ask in (
        lambda: topic.page(limit=odd),
        lambda: topic.page(max_bytes=odd),
        lambda: topic.page(wait_ms=odd),
        lambda: list(topic.read(limit=odd)),
    ):
        with pytest.raises(InvalidRequest):
            ask()


def test_a_name_is_a_string(door: Client) -> None:
    odd: Any = 5
    with pytest.raises(InvalidRequest):
        door.topic(odd).append(1)
    with pytest.raises(InvalidRequest):
        door.router(odd).put("a", "b")


def test_one_job_is_no_list_of_jobs(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.append(1)
    (job,) = queue.claim("n").claimed
    odd: Any = job
    for settle in (
        lambda: queue.ack(odd, node="n"),
        lambda: queue.nack(odd, node="n"),
        lambda: queue.extend(odd.seq, node="n", lease_ms=1000),
    ):
        with pytest.raises(InvalidRequest, match="brackets"):
            settle()
    assert queue.ack([job], node="n").acked == 1


@pytest.mark.parametrize("after", [-1, 2**64, 1.5, "1", None, True])
def test_a_cursor_is_a_seq(door: Client, name: str, after: Any) -> None:
    topic = door.topic(name)
    topic.append(1)
    with pytest.raises(InvalidRequest):
        list(topic.read(after))
    with pytest.raises(InvalidRequest):
        topic.page(after)
    with pytest.raises(InvalidRequest):
        next(topic.follow(after))
    with pytest.raises(InvalidRequest):
        list(topic.read(gaps="skip"))  # type: ignore[call-overload]


def test_one_node_may_be_left_out_by_its_name_alone(door: Client, name: str) -> None:
    topic = door.topic(name)
    for node in ("me", "m", "e"):
        topic.append(node, node=node)
    assert values(topic.read(exclude_nodes="me")) == ["m", "e"]
    assert [record.value for record in topic.page(exclude_nodes="me").records] == ["m", "e"]
    assert values(islice(topic.follow(exclude_nodes="me"), 2)) == ["m", "e"]
    assert values(topic.read(exclude_nodes=(node for node in ("me", "m")))) == ["e"]


@pytest.mark.parametrize("node", [5, None, b"me", "\ud800"])
def test_a_node_to_leave_out_is_a_name(door: Client, name: str, node: Any) -> None:
    topic = door.topic(name)
    topic.append(1)
    with pytest.raises(InvalidRequest, match="exclude_nodes"):
        topic.page(exclude_nodes=[node])
    with pytest.raises(InvalidRequest, match="exclude_nodes"):
        list(topic.read(exclude_nodes=[node]))
    with pytest.raises(InvalidRequest, match="exclude_nodes"):
        next(topic.follow(exclude_nodes=[node]))


@pytest.mark.parametrize("value", ["text", b"bytes", {"id": 1}])
def test_one_value_is_no_batch(door: Client, name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match="append takes one"):
        door.topic(name).append_many(value)
    with pytest.raises(TopicNotFound):
        door.topic(name).state()


def test_an_empty_batch_is_refused(door: Client, name: str) -> None:
    with pytest.raises(InvalidRequest):
        door.topic(name).append_many([])


def test_a_key_makes_a_write_happen_once(door: Client, name: str) -> None:
    topic = door.topic(name)
    first, again = topic.append(1, key="k"), topic.append(1, key="k")
    assert (first.deduped, again.deduped, again.first_seq) == (False, True, 1)
    assert values(topic.read()) == [1]


def test_reads_page_through_the_whole_log(door: Client, name: str) -> None:
    topic = door.topic(name)
    topic.append_many(range(2500))
    assert values(topic.read()) == list(range(2500))
    assert values(topic.read(2400)) == list(range(2400, 2500))
    assert values(topic.read(limit=1200)) == list(range(1200))
    assert values(topic.read(limit=0)) == []


def test_an_empty_topic_reads_as_an_empty_list(door: Client, name: str) -> None:
    door.topic(name).configure()
    page = door.topic(name).page()
    assert (page.records, page.caught_up, page.head_seq) == ([], True, 0)
    assert list(door.topic(name).read()) == []


def test_records_of_a_node_can_be_left_out(door: Client, name: str) -> None:
    topic = door.topic(name)
    topic.append_many([Event(1, node="a"), Event(2, node="b"), 3])
    assert values(topic.read(exclude_nodes=["a"])) == [2, 3]
    assert values(topic.read(exclude_nodes=["a", "b"])) == [3]


def test_a_loss_behind_the_cursor_is_raised_or_handed_over(door: Client, name: str) -> None:
    topic = door.topic(name, cap_records=3)
    topic.append_many(range(3))
    topic.append_many(range(3, 7))
    assert values(topic.read()) == [4, 5, 6]
    with pytest.raises(DataLoss) as caught:
        list(topic.read(1))
    assert (caught.value.gap_from, caught.value.gap_to, caught.value.reason) == (2, 4, "cap")
    items = list(topic.read(1, gaps="yield"))
    assert items[0] == Gap(name, 2, 4, "cap")
    assert values(iter(items)) == [4, 5, 6]


def test_a_follower_gets_what_is_there_and_what_comes(door: Client, name: str) -> None:
    topic = door.topic(name)
    topic.append_many([1, 2])
    items = topic.follow()
    got = [next(items), next(items)]
    writer = threading.Thread(target=topic.append, args=(3,))
    writer.start()
    got.append(next(items))
    writer.join()
    assert values(iter(got)) == [1, 2, 3]
    items.close()  # type: ignore[attr-defined]


def test_a_follower_is_told_of_a_gap(door: Client, name: str) -> None:
    topic = door.topic(name, cap_records=2)
    topic.append_many(range(2))
    topic.append_many(range(2, 6))
    gap, first, second = islice(topic.follow(1, gaps="yield"), 3)
    assert isinstance(gap, Gap)
    assert (gap.gap_from, gap.gap_to) == (2, 4)
    assert values(iter([first, second])) == [4, 5]
    with pytest.raises(DataLoss):
        next(topic.follow(1))


def test_a_follower_of_an_absent_topic_is_told_so(door: Client, name: str) -> None:
    with pytest.raises(TopicNotFound):
        next(door.topic(name).follow())


def test_a_follower_passes_over_nothing_when_its_topic_was_made_anew_meanwhile(door: Client, name: str) -> None:
    topic = door.topic(name)
    topic.append_many([1, 2, 3])
    items = topic.follow()
    assert values(islice(items, 3)) == [1, 2, 3]
    topic.drop()
    topic.append_many(["new"] * 5)
    with pytest.raises(TopicNotFound):
        next(items)


@pytest.mark.parametrize("gaps", ["raise", "yield"])
def test_a_reader_of_several_pages_is_told_that_its_topic_was_made_anew(
    door: Client, name: str, gaps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DIFF_LIMIT", limits.Clamp(default=10, low=1, high=10, zero=10))
    topic = door.topic(name)
    topic.append_many(["old"] * 25)
    items = topic.read(gaps=gaps)
    next(items)
    topic.drop()
    topic.append_many(["new"] * 24)
    if gaps == "raise":
        with pytest.raises(DataLoss, match="created again"):
            list(items)
        return
    left = list(items)
    assert [item for item in left if isinstance(item, Gap)] == [Gap(name, 1, 24, "recreated")]
    assert values(iter(left)) == ["old"] * 9 + ["new"] * 24


def test_a_reader_in_the_same_process_is_told_also_where_the_new_topic_is_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DIFF_LIMIT", limits.Clamp(default=10, low=1, high=10, zero=10))
    with topics.open(tmp_path) as db:
        topic = db.topic("a")
        topic.append_many(["old"] * 25)
        items = topic.read(gaps="yield")
        next(items)
        topic.drop()
        topic.append_many(["new"] * 30)
        left = list(items)
    assert left[9] == Gap("a", 1, 30, "recreated")
    assert values(iter(left[9:])) == ["new"] * 30


def test_a_follower_learns_that_its_topic_was_deleted(door: Client, name: str) -> None:
    topic = door.topic(name)
    topic.append(1)
    items = topic.follow()
    next(items)
    threading.Timer(0.1, topic.drop).start()
    with pytest.raises(TopicNotFound):
        next(items)


# --- deleting, configuring, listing ----------------------------------------------------------------------------------


def test_records_are_deleted_by_seq_and_by_tag(door: Client, name: str) -> None:
    topic = door.topic(name)
    topic.append_many([Event(n, tag=f"a:{n}" if n % 2 else f"b:{n}") for n in range(1, 7)])
    assert topic.delete(before_seq=3).deleted == 2
    assert topic.delete(match="a:*").deleted == 2
    assert topic.delete(match=["tag", "Eq", "b:4"]).deleted == 1
    assert values(topic.read(1)) == [6]
    with pytest.raises(InvalidRequest):
        topic.delete()


def test_state_and_config_are_shown(door: Client, name: str) -> None:
    config = door.topic(name).configure(cap_records=5, durability="fsync")
    assert (config.cap_records, config.durability, config.durable) == (5, "fsync", True)
    door.topic(name).append("xy")
    state = door.topic(name).state()
    assert (state.head_seq, state.next_seq, state.count, state.bytes, state.queue) == (1, 2, 1, 4, None)
    assert state.config == config


def test_config_on_first_write_and_bad_settings(door: Client, name: str) -> None:
    topic = door.topic(name, cap_records=1, discard="reject")
    topic.append(1)
    with pytest.raises(TopicFull):
        topic.append(2)
    with pytest.raises(InvalidRequest):
        door.topic(name, no_such_setting=1)  # type: ignore[call-arg]
    with pytest.raises(TopicExistsIncompatible):
        topic.configure(type="queue")


def test_dropping_a_topic(door: Client, name: str) -> None:
    topic = door.topic(name)
    assert topic.drop() is False
    topic.append(1)
    with pytest.raises(TopicNotEmpty):
        topic.drop(if_empty=True)
    assert topic.drop() is True
    with pytest.raises(TopicNotFound):
        topic.page()


def test_topics_are_listed_in_order_of_their_names(door: Client, name: str) -> None:
    assert list(door.topics(f"{name}-")) == []
    for suffix in ("c", "a", "b"):
        door.topic(f"{name}-{suffix}").append(1)
    assert [summary.topic for summary in door.topics(f"{name}-")] == [f"{name}-{s}" for s in "abc"]


def test_an_ill_formed_name_is_refused(door: Client) -> None:
    for bad in ("", "a b", "ü", "x" * 256, "a/b", "-a"):
        with pytest.raises(InvalidRequest):
            door.topic(bad).append(1)


# --- routers ---------------------------------------------------------------------------------------------------------


def test_a_router_copies_what_it_lets_through(door: Client, name: str) -> None:
    source, dest = f"{name}-in", f"{name}-out"
    router = door.router(f"{source}->{dest}")
    made = router.put(source, dest, filter="pub:*", preserve_tag=False)
    assert (made.created, made.filter) == (True, ["tag", "Glob", "pub:*"])
    door.topic(source).append_many([Event(1, tag="pub:a"), Event(2, tag="x"), 3])
    assert [(r.value, r.tag) for r in door.topic(dest).read() if isinstance(r, Record)] == [(1, None)]
    shown = router.get()
    assert (shown.source, shown.dest, shown.forwarded_total) == (source, dest, 1)
    assert [r.router for r in door.routers(name)] == [router.name]
    assert list(door.routers(source=dest)) == []
    with pytest.raises(RouterCycle):
        door.router(f"{name}-back").put(dest, source)
    assert (router.delete(), router.delete()) == (True, False)
    with pytest.raises(RouterNotFound):
        router.get()


# --- queues ----------------------------------------------------------------------------------------------------------


def test_a_job_is_claimed_extended_and_acked(door: Client, name: str) -> None:
    queue = door.queue(name, lease_ms=60_000)
    queue.append_many([Event("a", tag="t", meta={"k": 1}), "b", "c"])
    claim = queue.claim("w1", max=2)
    assert [(job.seq, job.value, job.deliveries) for job in claim.claimed] == [(1, "a", 1), (2, "b", 1)]
    assert (claim.count, claim.ready, claim.claimed[0].tag, claim.claimed[0].headers) == (2, 1, "t", {"k": 1})
    longer = queue.extend(claim.claimed, node="w1", lease_ms=120_000)
    assert longer.extended == 2
    assert longer.deadlines[1] > claim.claimed[0].deadline
    done = queue.ack(claim.claimed, node="w1")
    assert (done.acked, done.skipped, done.ready, done.in_flight) == (2, [], 1, 0)
    assert queue.ack([1, 2], node="w1").skipped == [1, 2]
    state = queue.state().queue
    assert state is not None
    assert (state.ready, state.in_flight) == (1, 0)


def test_a_dry_queue_gives_an_empty_list(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.configure()
    claim = queue.claim("w")
    assert (claim.claimed, claim.count, claim.ready) == ([], 0, 0)


def test_a_nacked_job_comes_back_and_its_old_lease_counts_no_more(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.append("job")
    (old,) = queue.claim("w").claimed
    assert queue.nack([old], node="w", delay_ms=0).nacked == 1
    (new,) = queue.claim("w").claimed
    assert (new.seq, new.deliveries) == (1, 2)
    assert queue.ack([old], node="w").skipped == [1]
    assert queue.ack([new], node="w").acked == 1


def test_a_delayed_job_is_not_handed_out_at_once(door: Client, name: str) -> None:
    queue = door.queue(name)
    queue.append("job")
    queue.nack(queue.claim("w").claimed, node="w", delay_ms=60_000)
    assert queue.claim("w").claimed == []


def test_poison_goes_to_the_dead_letters(door: Client, name: str) -> None:
    queue = door.queue(name, max_deliveries=1, dead_letter=f"{name}-dead")
    queue.append("job", meta={"k": 1})
    queue.nack(queue.claim("w").claimed, node="w")
    assert queue.claim("w").claimed == []
    (letter,) = door.topic(f"{name}-dead").read()
    assert isinstance(letter, Record)
    told = dict(letter.headers)
    times = [told.pop(f"$dead_letter_{moment}_ts") for moment in ("src", "first", "last")]
    assert times == sorted(times)
    assert told == {
        "k": 1,
        "$dead_letter_from": name,
        "$dead_letter_deliveries": "1",
        "$dead_letter_src_seq": "1",
        "$dead_letter_reason": "max_deliveries",
    }


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_topics_that_a_queue_makes_are_no_less_durable_than_it(door: Client, name: str, durability: Durability) -> None:
    dead, done = f"{name}-dead", f"{name}-done"
    queue = door.queue(name, durability=durability, max_deliveries=1, dead_letter=dead, done=done)
    queue.append("poison")
    queue.nack(queue.claim("w").claimed, node="w")
    assert queue.claim("w").claimed == []
    made = "fsync" if durability == "fsync" else "disk"
    assert [door.topic(made_by_queue).state().config.durability for made_by_queue in (dead, done)] == [made, made]


def test_queue_verbs_are_for_queues(door: Client, name: str) -> None:
    door.topic(name).append(1)
    with pytest.raises(NotAQueue):
        door.queue(name).claim("w")
    with pytest.raises(InvalidRequest):
        door.queue(name).ack([1], node="")


# --- values of a wrong type ------------------------------------------------------------------------------------------

WRONG: list[Any] = [-1, 1 << 64, 1.5, "1", b"1", [1], True, "\ud800"]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_a_value_of_a_wrong_type_is_refused(door: Client, name: str, wrong: Any) -> None:
    topic, queue = door.topic(name), door.queue(f"{name}.q")
    topic.append("kept")
    queue.append("kept")
    calls: list[Callable[[], object]] = [
        lambda: topic.delete(before_seq=wrong),
        lambda: queue.claim("n", max=wrong, lease_ms=wrong),
        lambda: queue.ack([wrong], node="n"),
        lambda: queue.nack([1], node="n", delay_ms=wrong),
        lambda: queue.extend([1], node="n", lease_ms=wrong),
        lambda: door.router(name).put(name, f"{name}.d", guarantee=wrong),
    ]
    if wrong is not True:
        calls.append(lambda: door.router(name).put(name, f"{name}.d", preserve_node=wrong))
    for call in calls:
        with pytest.raises(InvalidRequest):
            call()
    assert (topic.state().count, queue.state().count) == (1, 1)


# --- schedules -------------------------------------------------------------------------------------------------------


def test_a_schedule_is_put_run_paused_and_deleted(door: Client, name: str) -> None:
    schedule = door.schedule(name)
    made = schedule.put(name, {"kind": "daily"}, cron="0 3 * * *", timezone="Europe/Berlin", tag="r", meta={"k": 1})
    assert (made.created, made.topic, made.value, made.ticks) == (True, name, {"kind": "daily"}, 0)
    assert made.next_tick is not None
    assert schedule.run() == 1
    [record] = door.topic(name).read()
    assert (record.value, record.tag) == ({"kind": "daily"}, "r")
    assert (schedule.pause().next_tick, schedule.resume().next_tick) == (None, made.next_tick)
    assert [shown.schedule for shown in door.schedules(name)] == [name]
    assert list(door.schedules(topic=f"{name}.other")) == []
    assert schedule.get().paused is False
    assert (schedule.delete(), schedule.delete()) == (True, False)
    with pytest.raises(ScheduleNotFound):
        schedule.get()
    with pytest.raises(InvalidRequest, match="timezone"):
        schedule.put(name, cron="* * * * *", timezone="Mars/Olympus")
