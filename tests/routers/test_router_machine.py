"""Random histories of a router graph: whatever happens, a crash changes nothing that anyone could read.

Every payload is written once, so a seq that names two records, a copy out of order and a copy that vanished all show.
All topics are of class `fsync` or the crash is a kill, so every copy has to come back (invariants 41 to 46)."""

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.queues.world import World

TOPICS = ["a", "b", "c", "d"]
topics = st.sampled_from(TOPICS)


class RouterMachine(RuleBasedStateMachine):
    """a -> b -> c, and b -> d through a filter; each may be written to directly as well."""

    @initialize(shards=st.sampled_from([1, 3]), durability=st.sampled_from(["fsync", "disk"]), recent=st.booleans())
    def begin(self, shards, durability, recent):
        more = {} if recent else {"recent_cache_bytes": 0}
        self.world = World(wal_shards=shards, segment_max_events=5, **more)
        self.durability = durability
        self.is_cyclic = self.may_block = False
        self.next = 0
        self.named = {name: {} for name in TOPICS}
        self.written = {name: [] for name in TOPICS}
        for name in TOPICS:
            self.world.topic(name, durability=durability)
        self.world.router("ab", "a", "b")
        self.world.router("bc", "b", "c", guarantee="exactly_once")
        self.world.router("bd", "b", "d", filter="keep*")

    # --- what clients do ------------------------------------------------------------------------------------------

    @rule(topic=topics, count=st.integers(1, 4), keep=st.booleans())
    def write(self, topic, count, keep):
        values = [f"{topic}{self.next + at}" for at in range(count)]
        self.next += count
        try:
            self.world.write(topic, *values, tag="keep" if keep else "drop")
        except Exception as error:
            assert error.code in ("topic_full", "record_too_large")
        else:
            self.written[topic] += values

    @rule(topic=topics, back=st.integers(0, 4))
    def delete_before(self, topic, back):
        self.world.delete(topic, before=max(self.world.state(topic).head_seq - back, 0))

    @rule(topic=topics, tag=st.sampled_from(["keep", "drop"]))
    def delete_tag(self, topic, tag):
        self.world.delete(topic, match=tag)

    @rule(topic=topics, cap=st.sampled_from([0, 2, 6]), discard=st.sampled_from(["old", "reject"]))
    def set_cap(self, topic, cap, discard):
        if self.is_cyclic:  # a blocked router in a cycle forgets its hop counts in a crash, and may go round again
            discard = "old"
        self.may_block |= discard == "reject"
        self.world.topic(topic, cap_records=cap, discard=discard, durability=self.durability)

    @rule(topic=topics)
    def expire_everything(self, topic):
        config = self.world.state(topic).config
        kept = {"cap_records": config.cap_records, "discard": config.discard, "durability": self.durability}
        self.world.topic(topic, ttl_ms=1000, **kept)
        self.world.advance(1001)
        self.world.rest()
        self.world.topic(topic, **kept)

    @rule(preserve=st.booleans())
    def change_router(self, preserve):
        self.world.router("bc", "b", "c", guarantee="exactly_once", preserve_node=preserve)

    @rule()
    def make_router_again(self):
        self.world.drop_router("bd")
        self.world.router("bd", "b", "d", filter="keep*")

    @precondition(lambda self: not self.is_cyclic and not self.may_block)
    @rule()
    def close_a_cycle(self):
        self.is_cyclic = True
        self.world.router("ca", "c", "a", allow_cycle=True)

    @rule(ms=st.sampled_from([1, 60, 1500]))
    def advance(self, ms):
        self.world.advance(ms)

    # --- what the engine does in the background -------------------------------------------------------------------

    @rule()
    def checkpoint(self):
        self.world.checkpoint()

    @rule()
    def snapshot(self):
        self.world.snapshot()

    # --- crashes --------------------------------------------------------------------------------------------------

    @rule()
    def kill(self):
        before = self.everything()
        self.world = self.world.killed()
        assert self.everything() == before

    @precondition(lambda self: self.durability == "fsync")
    @rule(seed=st.integers(0, 9), pattern=st.sampled_from(["lose_all", "reorder"]))
    def cut_power(self, seed, pattern):
        before = self.everything()
        self.world = self.world.cut(seed, pattern)
        assert self.everything() == before

    @rule()
    def stop_and_start(self):
        before = self.everything()
        self.world = self.world.stopped()
        assert self.everything() == before

    def everything(self):
        self.world.advance(1100)  # the longest wait of a router that could not go on
        self.world.rest()
        return {
            name: (self.world.rows(name), self.world.gaps(name), self.world.state(name).head_seq) for name in TOPICS
        }

    # --- what always holds ----------------------------------------------------------------------------------------

    @invariant()
    def all_is_well(self):
        rows = {name: self.world.rows(name) for name in TOPICS}
        self.a_seq_names_one_record(rows)
        self.copies_are_in_source_order_and_none_is_made_twice(rows)
        for name in TOPICS:
            state = self.world.state(name)
            assert state.count == len(rows[name])
            assert 1 <= state.earliest_seq <= state.head_seq + 1

    def a_seq_names_one_record(self, rows):
        for name in TOPICS:
            for seq, data in rows[name]:
                assert self.named[name].setdefault(seq, data) == data

    def copies_are_in_source_order_and_none_is_made_twice(self, rows):
        if self.is_cyclic:
            return
        for name, source in (("b", "a"), ("c", "b"), ("d", "b")):
            order = {data: seq for seq, data in self.named[source].items()}
            places = [order[data] for _, data in rows[name] if data in order]
            assert places == sorted(set(places))

    def teardown(self):
        if hasattr(self, "world"):
            self.world.rest()


RouterMachine.TestCase.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, phases=[Phase.reuse, Phase.generate, Phase.shrink]
)
TestRouterMachine = RouterMachine.TestCase
