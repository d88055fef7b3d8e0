"""The write-ahead log on disk: groups of numbered files that are appended to, scanned, repaired and removed.

`group` writes, `rotation` makes the next file, `reader` scans, `repair` cuts, `removal` drops what is absorbed, `files`
keeps every file open for reads. Bytes of frames belong to `topics.formats`; threads and queues to the runtime.
"""
