"""The deterministic state machine of topics: pure, no files, no clock, no threads.

`decide_*` functions look at state and answer with ops or an error; `apply` is the only thing that changes published
state, live and in recovery alike. Called by `topics.engine`, on the owner's thread."""
