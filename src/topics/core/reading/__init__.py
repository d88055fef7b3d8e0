"""Reading: which records a reader gets, wherever they lie.

    request  what a read asks for and what it gives; records read ahead
    walk     the walk from block to block behind diff, watch and WebSocket; the short way near the head
    by_seq   the records of given seqs, for claims and dead letters
    seek     where a read by time begins
    newest   the newest record, of all or of a tag
    named_cursors  durable positions of readers, and their lag
    recent   the newest frames in memory, and records that lie in no file

Never touches a file: a walk says which records it needs (an `Extent`) and is fed with them."""
