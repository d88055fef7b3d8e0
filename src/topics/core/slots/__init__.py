"""Slots: a place for every seq of a topic, and what is known of the record there.

    slot_range    what a tail run and a sealed segment have in common: live and dead slots, searches, totals
    tail          records that are in the log or in the active segment, in typed arrays; their tags
    sealed_slots  sealed segments, as storage shows them, and what has died in them
    extent        records to be fetched from one place
    tag_walk      the live records of tags in byte order, block by block
    checkpoint    how records move from the tail to segments
    restore       a topic's slots as a start finds them

Never reads a file: a segment is seen through `SegmentView`, which storage implements."""
