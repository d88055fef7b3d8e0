"""Queue: the state of a queue topic, and decisions about its jobs (`docs/spec/semantics.md#sec-16`).

    queue_job   a job that was handed out, and its states
    due_times   times and seqs, earliest first, in typed arrays
    fields      what a write said about its jobs, and unique keys
    queue_rules the config's word on retries and flow; token buckets
    lines       the jobs that are ready, in the order in which they are handed out
    queue       QueueState: all of this together, and how it changes
    leases      lease events and job fields, applied, live and in replay
    image       what a snapshot keeps
    entering    which records of a write with job fields are appended
    operations  claim, ack, nack and extend as decisions

Pure: no clock, no file. Never removes a record; it is told when one is gone."""
