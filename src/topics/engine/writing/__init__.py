"""Writing: from a command's ops to committed frames.

    writes    the path of an append: decide, coalesce, publish, answer
    coalesced_write  plain writes of one topic and turn as one submission
    job_controls  frames in front of records with job fields
    riding    ops that are kept with an append or not at all
    ceilings  seqs that are reserved durably before they are acked
    encode    ops to frames
    commit    the queue of each log group, and when a submission is applied
    quota     a write that finds the server full has what is due removed first

Never touches a file: the runtime takes submissions from `Commit` and reports what became of them.
"""
