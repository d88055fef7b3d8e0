"""Loading: the segments of a topic at start.

    load            the sequence, from names on disk to segments in memory
    loaded          what was known before, and what loading gives
    leftovers       names in the directory: ours, foreign, and what a crash left
    open_end        what a crash may leave behind the last synced mark
    heal            a pair of files that do not agree
    segment_repair  a good frame in the place of a damaged one

Reads only: what must change on disk is put off until the whole directory was accepted.
"""
