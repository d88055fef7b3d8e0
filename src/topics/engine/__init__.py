"""The engine: a sans-I/O coordinator between commands, the core state machine and whoever writes the log.

    ticket       a value to come: the answer of every command
    context      what the services share: state, commit, clock, name locks, the seams to files and to delivery
    engine       the services put together; the verbs of a topic by name. Begin here
    lifecycle    create, reconfigure and delete topics; a write that creates its topic
    schedules    records that are appended by the clock
    deletes      removal of records on request
    compaction   removal of what is superseded
    floor_log    floors are logged before anyone may see them
    marks        the frames of checkpoints
    writing/     the path of an append: decide, encode, commit, publish
    reading/     reads, long polls, state and lists
    queues/      claim, ack, nack, extend; dead letters; work streams
    routers/     definitions, and the steps that copy records
    delivery/    from a published record to the watcher that is served next; pressure and admission
    recovery/    from log frames back to state

It decides (through `topics.core`), hands out submissions to write and file work to do, and is told when they are done.
Never opens a file, starts a thread or reads a clock of its own; `topics.runtime` does that for it. Never imports
`topics.storage`."""
