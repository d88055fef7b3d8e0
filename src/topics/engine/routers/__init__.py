"""Routers: records of a source copied to a destination (`docs/spec/semantics.md#sec-15`).

    routers      define, show, delete; what may be defined
    forwarding   which router steps when; reads of a destination see every acked source write
    step         one step: read, choose, append, or pass on a loss
    copies       copies as an op; what the steps of one source share
    evidence     what log frames say about routers, so that copies can be made again
    checkpoints  what checkpoints keep of routers, and the changes that wait for one

Copies have no log frames (`docs/spec/storage.md#sec-9-6`); how they come back after a crash is told in
`engine.recovery`. Never moves a cursor past a record that is neither in the destination nor skipped for good; never
makes a writer wait."""
