"""Background work: what the server does beside requests, on its own threads.

    scheduler     when each of these runs
    checkpointer  records move from the log into segments
    snapshotter   metadata snapshots, and log files that may go
    janitor       dead segments, deleted topics, mostly dead segments
    compactor     superseded records of topics that keep the latest per tag
    tiers         segments move between the hot and the cold store
    failure_log   a failure is told once, and once that it is over
    gather        one ticket for many

Never decides on the owner's thread what a file says, and never touches engine state on another thread.
"""
