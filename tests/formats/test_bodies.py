"""Control bodies: optional keys are left out, required ones are required, unknown ones are ignored."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.samples import BODIES
from tests.formats.strategies import u64

from topics.errors import Corruption
from topics.formats.wal import bodies as b
from topics.formats.wal.frame import FrameType
from topics.model import ops
from topics.model.names import TagMatch

OPTIONAL = {
    "cursor-commit": {"seq"},
    "schedule-tick": {"at", "ticks"},
    "cursor-put": {"seq", "fence", "owner", "meta", "hold"},
    "router-create": {"filter"},
    "delete-selector": {"before_seq", "match", "routed"},
    "delete-seqs": set(),
    "evict-watermark": {"routed"},
    "lease": {"ready_at"},
    "jobs-added": {"ready_at", "priority", "unique"},
    "head-watermark-full": {"resume_at", "lost", "pin"},
    "head-watermark-fork": {"fork"},
}
floors = st.fixed_dictionaries(
    dict.fromkeys(("evict_floor", "cap_lost", "ttl_lost", "trim_lost", "restart_lost", "earliest_seq"), u64)
)
selectors = st.none() | st.builds(TagMatch, st.sampled_from(("Eq", "Glob")), st.text())
marks = st.builds(ops.RouterMark, name=st.text(), cursor=u64, forwarded_total=u64, dest_base=u64)
routed = st.lists(marks, max_size=3).map(tuple)
configs = st.dictionaries(st.text(max_size=5), st.none() | st.booleans() | u64 | st.text(max_size=5), max_size=4)
lost = st.tuples(u64, u64, st.sampled_from(("restart", "source_trim", "cap")))
topic_marks = floors.flatmap(
    lambda f: st.builds(
        lambda rest, active: b.TopicMark(**f, **rest, active=active),
        st.fixed_dictionaries(dict.fromkeys(("id", "seq", "ceiling", "delete_below", "sealed_to"), u64)),
        st.none() | st.builds(b.ActiveSegmentItem, u64, u64, u64),
    )
)
any_body = st.one_of(
    st.builds(b.TopicCreateBody, name=st.text(), epoch=u64, config=configs, created_ts=u64),
    st.builds(ops.TopicDelete, name=st.text(), epoch=u64),
    st.builds(b.ConfigUpdateBody, name=st.text(), config=configs),
    st.builds(ops.RouterDelete, name=st.text()),
    st.builds(
        ops.Delete,
        before_seq=st.none() | u64,
        match=selectors,
        seqs=st.none() | st.lists(u64).map(tuple),
        bound_head=u64,
        reason=st.sampled_from(("api", "ack", "dead_letter")),
        routed=routed,
    ),
    floors.flatmap(lambda f: st.builds(lambda r: ops.Evict(**f, routed=r), routed)),
    st.builds(
        ops.LeaseEvent,
        event=st.integers(0, 3),
        node=st.text(),
        lease_id=u64,
        deadline=u64,
        deliveries=u64,
        ready_at=st.none() | u64,
        error=st.text(),
        final=st.booleans(),
    ),
    st.integers(0, 3).flatmap(
        lambda count: st.builds(
            ops.JobsAdded,
            first_seq=u64,
            ready_at=st.lists(u64, min_size=count, max_size=count).map(tuple),
            priority=st.lists(st.integers(-9, 9), min_size=count, max_size=count).map(tuple),
            unique=st.lists(st.none() | st.tuples(st.text(), u64), min_size=count, max_size=count).map(tuple),
        )
    ),
    st.builds(
        ops.HeadMark,
        ceiling=u64,
        resume_at=st.none() | u64,
        lost=st.lists(lost, max_size=3).map(tuple),
        pin=st.none() | st.builds(ops.Pin, router=st.text(), cursor=u64, forwarded_total=u64, dest_base=u64),
    ),
    st.builds(
        ops.CursorChange,
        name=st.text(),
        event=st.integers(0, 2),
        seq=st.none() | u64,
        fence=st.none() | u64,
        owner=st.none() | st.text(),
        meta=st.none() | st.binary(),
        hold=st.none() | st.tuples(u64, u64),
    ),
    st.builds(b.OpenMark, gen=u64, shards=u64, first=u64, group=st.text()),
    st.builds(
        b.CkptMark, n=u64, file=u64, off=u64, topics=st.lists(topic_marks, max_size=3).map(tuple), routers=routed
    ),
    st.builds(
        b.TierMark,
        moves=st.lists(
            st.builds(b.TierMove, id=u64, first=u64, count=u64, tier=st.sampled_from(("cold", "hot", "gone"))),
            max_size=3,
        ).map(tuple),
    ),
)


def as_map(body: b.Body) -> dict[str, Any]:
    decoded = msgspec.msgpack.decode(b.encode_body(body))
    assert isinstance(decoded, dict)
    return decoded


@given(any_body)
def test_a_body_reads_back(body: b.Body) -> None:
    assert b.decode_body(b.kind_of(body), b.encode_body(body)) == body


@pytest.mark.parametrize("name", sorted(BODIES))
def test_every_key_but_the_optional_ones_is_required(name: str) -> None:
    kind, _, _, body = BODIES[name]
    keys = as_map(body)
    for key in keys:
        raw = msgspec.msgpack.encode({k: v for k, v in keys.items() if k != key})
        if key in OPTIONAL.get(name, set()):
            b.decode_body(kind, raw)
        else:
            with pytest.raises(Corruption):
                b.decode_body(kind, raw)


@pytest.mark.parametrize("name", sorted(BODIES))
def test_a_key_of_a_later_version_is_ignored(name: str) -> None:
    kind, _, _, body = BODIES[name]
    raw = msgspec.msgpack.encode(as_map(body) | {"zz_new": [1, {"a": None}]})
    assert b.decode_body(kind, raw) == body


def test_optional_keys_are_left_out_when_they_say_nothing() -> None:
    assert as_map(ops.HeadMark(ceiling=1)) == {"ceiling": 1}
    assert as_map(ops.Delete(bound_head=3, reason="api")) == {"bound_head": 3, "reason": "api"}
    active = as_map(BODIES["mark-ckpt"][3])["topics"][1]["active"]
    assert active is None  # required, and nil when there is no active segment


def test_marks_are_told_apart_by_kind() -> None:
    assert as_map(BODIES["mark-open"][3])["kind"] == "open"
    assert next(iter(as_map(BODIES["mark-ckpt"][3]))) == "kind"
    assert as_map(BODIES["mark-tier"][3])["kind"] == "tier"
    with pytest.raises(Corruption):
        b.decode_body(8, msgspec.msgpack.encode({"kind": "new", "gen": 1}))


@pytest.mark.parametrize("kind", [0, 1, 15, 255])
def test_a_type_without_a_body_has_none(kind: int) -> None:
    with pytest.raises(Corruption) as caught:
        b.decode_body(kind, b"\x80")
    assert caught.value.reason == "type"


@pytest.mark.parametrize(
    "raw",
    [
        {"ceiling": -1},
        {"ceiling": "1"},
        {"ceiling": 1.5},
        {"ceiling": 1, "lost": [[1, 2]]},
        {"ceiling": 1, "lost": [[1, 2, "whim"]]},
        {"ceiling": 1, "pin": {"router": "r"}},
        [1],
        None,
    ],
)
def test_a_value_of_the_wrong_kind_is_bad(raw: Any) -> None:
    with pytest.raises(Corruption):
        b.decode_body(FrameType.HEAD_WATERMARK, msgspec.msgpack.encode(raw))


def test_deep_nesting_is_bad_and_not_a_crash() -> None:
    raw = b"\x82\xa4name\xa1a\xa6config\x81\xa1x" + b"\x91" * 100_000 + b"\x01"
    with pytest.raises(Corruption):
        b.decode_body(FrameType.CONFIG_UPDATE, raw)


def test_a_delete_needs_seqs_or_a_bound() -> None:
    with pytest.raises(ValueError, match="bound_head"):
        ops.Delete(reason="api")
