"""Delivery: from a published record to the watcher that is served next (`docs/spec/delivery.md`). No sockets, no files,
no threads.

    published -> Delivery.mark -> ReadySet (bands, rounds, ageing) -> one service -> each Watcher gets one batch

Time comes in as a function, the wake-up goes out as one, so the whole of it can be stepped by hand."""
