"""Flags that an earlier process set: are they durable?

A delete is replayed from the log until a snapshot has passed it, and that waits until its flags are synced. A process
that was killed in between leaves flags in the page cache. The next one finds them set, so it does not set them again,
and would take them for proof. Therefore the segments that recovery looks at are synced before it lets anything pass.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from topics.formats.idx import IDX_DELETED

if TYPE_CHECKING:
    from topics.storage.segments.pair import Pair
    from topics.storage.segments.place import TopicDir


def sync_old_flags(place: TopicDir, first_seq: int, pair: Pair) -> None:
    """Sync both files once recovery may write, if the index holds flags that may not be durable."""
    env = place.env
    if env.may_write or env.rebooted:
        return
    if bool((((pair.flags & IDX_DELETED) != 0) & (pair.lens > 0)).any()):
        env.write_or_defer(partial(sync_files, place, first_seq))


def sync_files(place: TopicDir, first_seq: int) -> None:
    """`.data` first: a flag in the index must never be older than the one it mirrors."""
    for part in ("data", "idx"):
        with place.env.files.borrow(place.file(first_seq, part), "rw") as file:
            file.datasync()
