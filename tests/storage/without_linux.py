"""A plugin of pytest: takes away what other systems lack, before anything of ours is loaded."""

import os

TAKEN = ("fdatasync", "memfd_create", "posix_fadvise", "posix_fallocate", "pwritev", "sched_getaffinity")

for name in TAKEN:
    if hasattr(os, name):
        delattr(os, name)
