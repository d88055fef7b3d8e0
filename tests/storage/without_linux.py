"""A plugin of pytest: takes away what other systems lack, before anything of ours is loaded."""

import os

TAKEN = ("fdatasync", "memfd_create", "posix_fadvise", "posix_fallocate", "preadv", "pwritev", "sched_getaffinity")

for name in TAKEN:
    if hasattr(os, name):
        delattr(os, name)
if hasattr(os, "process_cpu_count"):  # where Python was built without sched_getaffinity, it is this
    setattr(os, "process_cpu_count", os.cpu_count)  # noqa: B010
