"""Checkpoint: records move from the log into segments (`docs/spec/storage.md#sec-7`).

absorb           one job: log frames made into segment frames and entries, written and synced in their order
segment_writer   one job's additions to one segment
"""
