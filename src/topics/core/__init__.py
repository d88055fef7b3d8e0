"""The deterministic state machine of topics: pure, no files, no clock, no threads.

    state, topic     all topics; everything one topic is
    append, delete   decisions about writes and deletes, and what applying them does
    create_drop      creating, reconfiguring and deleting topics
    apply, effects   the one way published state changes, and what a change did
    slots/           a place for every seq
    retention/       what is lost without a request
    reading/         which records a reader gets
    queue/           who holds which job
    schedules/       records that are appended by the clock
    router, router_copy, meta   routers: progress, copies, and the keys they add
    idempotency      which write keys are remembered
    lineage          which life of a topic a position belongs to
    capture          a topic as a snapshot keeps it
    manifest         where the records of a topic lie, for bulk readers

`decide_*` functions look at state and answer with ops or an error; `apply` is the only thing that changes published
state, live and in recovery alike. Called by `topics.engine`, on the owner's thread.
"""
