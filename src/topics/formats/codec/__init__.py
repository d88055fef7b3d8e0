"""Codec: the loops over frames that everything under `topics.formats` stands on, each over a whole batch. There are two
of every module: one in plain Python, which is the specification that one reads, and one in C, which runs where it could
be built. Both give the same bytes and refuse the same things (`tests/formats/test_both_codecs.py`).

plain_log, native_log           encode appends; scan and verify the log; log frames to segment frames and entries
plain_segment, native_segment   scan and verify segments; frames to the columns of reads and of Spark; checksums, texts
plain_render, native_render     records as the JSON that readers get
native.pxd                      what the native modules share

`TOPICS_KERNEL` chooses at import, `native` or `pure` (`topics.formats.kernel_choice`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.formats.kernel_choice import KERNEL

if TYPE_CHECKING or KERNEL == "pure":
    from topics.formats.codec import plain_log as log
    from topics.formats.codec import plain_render as render
    from topics.formats.codec import plain_segment as segment
else:
    from topics.formats.codec import native_log as log
    from topics.formats.codec import native_render as render
    from topics.formats.codec import native_segment as segment

__all__ = ["log", "render", "segment"]
