"""Diff, server-sent events and WebSocket agree: the same records and the same gaps, whatever happened to the topic."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.delivery.rig import Rig, Stream, WsClient, bodies_of, last_id

from topics.wire.outgoing.records import View

Told = list[tuple[str, Any]]
"""What a reader learned, in order: records as shown, gaps with their ends."""


def by_frames(frames: list[tuple[str, dict[str, Any]]]) -> Told:
    told: Told = []
    for event, data in frames:
        if event == "record":
            told += [("record", record) for record in data["records"]]
        elif event == "tombstone":
            told.append(("gap", (data["gap_from"], data["gap_to"])))
    return told


def by_diffs(rig: Rig, from_seq: int, view: View, **options: Any) -> Told:
    """Diff after diff, until caught up."""
    told: Told = []
    while True:
        outcome = rig.diff("a", from_seq, **options)
        if outcome.tombstone is not None:
            told.append(("gap", (outcome.tombstone.gap_from, outcome.tombstone.gap_to)))
        told += [("record", record) for record in bodies_of(outcome, view)]
        from_seq = outcome.next_from_seq
        if outcome.caught_up:
            return told


history = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(st.sampled_from(["me", "you", None]), min_size=1, max_size=6)),
        st.tuples(st.just("delete"), st.sampled_from(["before", "tag"])),
        st.tuples(st.just("wait"), st.sampled_from([100, 700])),
        st.tuples(st.just("checkpoint"), st.none()),
        st.tuples(st.just("forget"), st.none()),
    ),
    max_size=14,
)
configs = st.fixed_dictionaries(
    {
        "cap_records": st.sampled_from([0, 0, 4, 9]),
        "cap_bytes": st.sampled_from([0, 0, 60]),
        "ttl_ms": st.sampled_from([0, 0, 600]),
        "durability": st.sampled_from(["disk", "fsync", "ephemeral", "memory"]),
        "dedupe_node": st.booleans(),
    }
)
options = st.fixed_dictionaries(
    {"limit": st.integers(1, 5), "budget": st.sampled_from([1, 25, 262_144]), "node": st.sampled_from([None, "me"])}
)
views = st.builds(View, data=st.just(True), tags=st.booleans(), meta=st.booleans())


def happen(rig: Rig, number: int, action: str, what: Any) -> None:
    if action == "write":
        rig.write(
            "a",
            *[
                {
                    "data": f"{number}-{at}",
                    "tag": "odd" if at % 2 else "even",
                    **({} if node is None else {"node": node}),
                }
                for at, node in enumerate(what)
            ],
        )
    elif action == "delete" and what == "before":
        rig.delete("a", before_seq=number)
    elif action == "delete":
        rig.delete("a", match="odd")
    elif action == "wait":
        rig.advance(what)
    elif action == "checkpoint":
        rig.sim.checkpoint()
    else:
        rig.sim.engine.state.recent.drop_topic(rig.topic("a").id)


@settings(max_examples=120)
@given(configs, history, options, views, st.integers(0, 12))
def test_readers_with_one_cursor_and_filter_get_the_same_records_and_gaps(
    config: dict[str, Any], script: list[tuple[str, Any]], chosen: dict[str, Any], view: View, from_seq: int
) -> None:
    rig = Rig(segment_max_events=4)
    rig.put("a", **config)
    for number, (action, what) in enumerate(script):
        happen(rig, number, action, what)
    stream = rig.watch({"a": from_seq}, view=view, **chosen)
    socket = rig.socket()
    socket.say(
        "subscribe",
        topic="a",
        from_seq=from_seq,
        limit=chosen["limit"],
        max_batch_bytes=chosen["budget"],
        node=chosen["node"],
        include_tags=view.tags,
        include_meta=view.meta,
    )
    rig.pump()
    expected = by_diffs(rig, from_seq, view, **chosen)
    assert by_frames([(frame.event, frame.data) for frame in stream.frames()]) == expected
    assert by_frames([(message["op"], message) for message in socket.messages()]) == expected
    assert stream.events()[-1] == "caught-up"
    assert socket.messages()[-1]["op"] == "caught_up"


class Reconnecting:
    """A stream that is cut now and then, at any byte, and resumed with the last id it got."""

    def __init__(self, rig: Rig, **chosen: Any) -> None:
        self._rig = rig
        self._session = rig.session({"a": 0}, **chosen)
        self._told: Told = []
        self._id: bytes | None = None
        self.stream: Stream = rig.open(self._session)

    def cut(self, share: float) -> None:
        upto = int(share * len(self.stream.received))
        part = self.stream.received[:upto]
        self._told += by_frames([(frame.event, frame.data) for frame in self.stream.frames(upto=upto)])
        self._id = last_id(part) or self._id
        self.stream.cut()
        if self._id is None:
            self._session.places[0].cursor = 0
        self.stream = self._rig.open(self._session, last_id=self._id)

    def told(self) -> Told:
        return self._told + by_frames([(frame.event, frame.data) for frame in self.stream.frames()])


class Resubscribing:
    """A socket that is cut now and then and subscribes again after the last thing it was told."""

    def __init__(self, rig: Rig, **chosen: Any) -> None:
        self._rig = rig
        self._chosen = chosen
        self._told: Told = []
        self._cursor = 0
        self.socket: WsClient = self._subscribe()

    def _subscribe(self) -> WsClient:
        socket = self._rig.socket()
        socket.say("subscribe", topic="a", from_seq=self._cursor, **self._chosen)
        self._rig.pump()
        return socket

    def cut(self, share: float) -> None:
        messages = self.socket.messages()[: int(share * len(self.socket.messages()))]
        self._take(messages)
        self.socket.cut()
        self.socket = self._subscribe()

    def _take(self, messages: list[dict[str, Any]]) -> None:
        self._told += by_frames([(message["op"], message) for message in messages])
        for message in messages:
            if message["op"] == "record":
                self._cursor = message["to_seq"]
            elif message["op"] == "tombstone":
                self._cursor = message["gap_to"]

    def told(self) -> Told:
        return self._told + by_frames([(message["op"], message) for message in self.socket.messages()])


@settings(max_examples=80)
@given(configs, history, options, st.lists(st.floats(0, 1), min_size=1, max_size=14))
def test_live_readers_that_are_cut_at_any_byte_learn_of_everything_once(
    config: dict[str, Any], script: list[tuple[str, Any]], chosen: dict[str, Any], cuts: list[float]
) -> None:
    rig = Rig(segment_max_events=4)
    rig.put("a", **config)
    steady = rig.watch({"a": 0}, **chosen)
    stream = Reconnecting(rig, **chosen)
    socket = Resubscribing(rig, limit=chosen["limit"], max_batch_bytes=chosen["budget"], node=chosen["node"])
    for number, (action, what) in enumerate(script):
        happen(rig, number, action, what)
        stream.cut(cuts[number % len(cuts)])
        socket.cut(cuts[-number % len(cuts)])
    whole = [
        record["$seq"] for event, record in by_frames([(f.event, f.data) for f in steady.frames()]) if event == "record"
    ]
    for told in (stream.told(), socket.told()):
        seqs = [record["$seq"] for event, record in told if event == "record"]
        gaps = [range(what[0], what[1] + 1) for event, what in told if event == "gap"]
        assert seqs == sorted(set(seqs))
        removed = _removed_on_request(rig, whole)
        for seq in set(whole) - set(seqs):
            assert seq in removed or any(seq in gap for gap in gaps)


def _removed_on_request(rig: Rig, seqs: list[int]) -> set[int]:
    """Of these seqs, those that are gone without being lost: a reader that came later is told nothing of them."""
    topic = rig.topic("a")
    return {seq for seq in seqs if not topic.live(seq)}
