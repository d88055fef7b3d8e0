"""Commands that talk to a server.

Modules, in reading order:

    topic       `topics topic`: create, list, look at, reconfigure and remove topics
    records     `topics produce`, `delete`
    reading     `topics read`, `tail`, `get`, and where in a topic they begin and end
    transfer    `topics export`, `import`: a topic into a file and back
    cursor      `topics cursor`: named cursors, and the lag of every reader
    queue       `topics queue`: claim and ack, and a command that is run for each job
    jobs        `topics queue`: look at queues, jobs and workers, pause, cancel, retry, purge
    app_worker  `topics worker`: the functions of an app
    dlq         `topics dlq`: dead letters
    router      `topics router`
    schedule    `topics schedule`: records that are appended by the clock
    tier        `topics tier`
    top         `topics top`: what a server does right now

Each command is a function over the blocking client (`cli.remote` makes it); none opens a data directory.
"""
