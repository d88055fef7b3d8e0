"""Queues: jobs of a queue topic, leased to workers (`docs/spec/semantics.md#sec-16`).

    queues        claim, ack, nack, extend; the windows in which claims are coalesced
    claim_pass    one cohort of claimers is dealt its jobs; lease ids
    waiting       claims that wait for a job; what wakes them and the streams
    entering_writes  writes whose records have job fields
    job_ends      jobs leave, and the history learns of it
    dead_letters  exhausted jobs move to another topic
    job_lists     what is in a queue and who works on it
    job_actions   cancel, retry now, move, redrive
    work_streams  connections that are kept supplied with jobs

Never hands out a job that has a lease; never deletes a dead letter before its copy is acked."""
