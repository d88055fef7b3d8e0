"""Commands that talk to a server.

Modules, in reading order:

    topic     `topics topic`: create, list, look at, reconfigure and remove topics
    records   `topics produce`, `delete`
    reading   `topics read`, `tail`, and where in a topic they begin and end
    queue     `topics queue`: workers, and the state of a queue
    dlq       `topics dlq`: dead letters
    router    `topics router`
    tier      `topics tier`

Each command is a function over the blocking client (`cli.remote` makes it); none opens a data directory.
"""
