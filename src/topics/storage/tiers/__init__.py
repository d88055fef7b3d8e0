"""Tiers: the cold store beside the data directory.

    stores        what a store of segments is; a folder as one
    object_store  any store that `pyarrow.fs` opens as one
    cold_tier     the one cold root of a directory, and whether it may be used
    cold_cache    ranges that were fetched lately
    relocate      segments moved between hot and cold, step by step

Never deletes a hot copy before the cold one was read back, and never runs on the owner's thread.
"""
