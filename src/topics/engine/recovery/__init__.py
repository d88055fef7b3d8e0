"""Recovery: from log frames back to the state before the crash.

    decode               frames to ops, the inverse of `writing.encode`
    replay               the ops of all files through the same `apply` as live; then what is missing is announced
    router_recovery      the copies of routers, which have no frames, made again
    router_sources       which source records each router had copied
    router_destinations  which seqs those copies had

How a destination gets its copies back. A copy has no log frame: a write into a source costs one append, whatever the
fan-out. After a crash, a copy that a checkpoint had moved into a segment is simply there. Every younger one is made
again from its source record, and four kinds of frames say which seq it had:

1. A checkpoint's mark has every router's cursor (the last source seq done) and count. Recovery starts there.
2. A source's Delete and EvictWatermark frames say how far each router had come when records died. So a record that is
   dead now, but was copied before it died, is copied again.
3. The destination's own frames (direct writes, deletes, floors) say how many seqs there were when they were written.
   They are held back until the copies before them are put in.
4. A pin in the destination's log says exactly where a router stood after a direct write, or after a loss that it passed
   on.

Why no seq ever names another record. Between two frames of the destination the copies stand in source order, without
holes, and one router alone makes them: so the seq of each is known (the mapping is *proven*). Where it is not known
(several routers, a lost delete, a source that lost what was copied), nothing is guessed: the destination goes on above
its ceiling, which is above every seq that anyone can have seen, the range in between is announced as lost, and the
router repeats from its last certain cursor. That is a repeat, never a silent loss, and never one seq with two records.
Copies whose source record is gone by then are kept in memory (`copies_to_restore`); the router's first steps make them.

Never writes a file: `runtime.recovery` logs the marks that are returned, after everything was read and accepted.
"""
