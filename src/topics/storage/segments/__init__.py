"""Segments: the stored history of each topic, in pairs of `.data` and `.idx` files (`docs/spec/storage.md#sec-6`).

    topic_dir       the directory of one topic, and the caches that all topics share
    active_segment  the newest segment, which a checkpoint appends to
    sealed_segment  one that takes no more records, opened when it is first read
    segment_arrays  its mapped files as arrays; every frame is checked before it is served
    open_segment    opening and checking the pair of files
    tags            tags and sizes, through the sidecar
    flips           deletes as one byte in a frame
    rewrite         space of deleted records given back
    replace         the files of a segment exchanged or dropped
    findings        what an operator should hear of
    loading/        segments at start

Never serves a byte that fails its check, and never holds a lock while it waits for the disk to sync.
"""
