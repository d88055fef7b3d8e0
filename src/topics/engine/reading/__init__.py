"""Reading: what observers of a topic see.

    reads       one read, from memory or through fetches; the records of given seqs
    single_reads  one record by its seq, and the newest
    long_polls  reads that wait for something to deliver
    queries     the state of a topic, the list of topics
    latest      the newest record of each tag
    starts      where a read begins that names a time or a cursor
    cursor_commands  named cursors: commit, put, drop, show, list

Never shows a floor before it is logged; never changes a topic, except that a read may count as consumption."""
