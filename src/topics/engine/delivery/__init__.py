"""Delivery: from a published record to the watcher that is served next (`docs/spec/delivery.md`).

    published -> DeliveryLoop -> ReadySet (bands, rounds, ageing) -> one service -> each Watcher gets one batch

    delivery     the loop: marks topics, serves them, measures pressure
    ready        the ready set: whose turn it is; priorities and bands
    watched      a watched topic, and the service it gets
    sync_limits  how far a strong watcher may see
    pressure     how short of time the process is, and the stages that follow
    admission    a write that meets a full commit queue waits or is refused

Time comes in as a function, the wake-up goes out as one, so the whole of it can be stepped by hand. Never touches a
socket, a file or a thread; never renders."""
