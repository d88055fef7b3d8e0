"""Writing: from a command's ops to committed frames.

    writes    the path of an append: decide, coalesce, encode, publish, answer
    job_controls  frames in front of records with job fields
    ceilings  seqs that are reserved durably before they are acked
    encode    ops to frames
    commit    the queue of each log group, and when a submission is applied
    quota     a write that finds the server full has what is due removed first

Never touches a file: the runtime takes submissions from `Commit` and reports what became of them.
"""
