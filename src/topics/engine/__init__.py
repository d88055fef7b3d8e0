"""The engine: a sans-I/O coordinator between commands, the core state machine and whoever writes the log.

It decides (through `topics.core`), hands out submissions to write and jobs to run, and is told when they are done.
It never opens a file, starts a thread or reads a clock of its own; `topics.runtime` does that for it."""
