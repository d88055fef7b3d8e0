"""Trim: records that are safely elsewhere are deleted from their topics. Used by streams and by the archive."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from topics.spark.logs.remote import Remote, topic_path
from topics.spark.planning.cut import TopicCut
from topics.spark.planning.offsets import Points


def trim_before(remote: Remote, points: Points, cuts: Mapping[str, TopicCut]) -> None:
    """Delete the records before each point, of the same instance only."""
    try:
        for name, point in points.items():
            cut = cuts.get(name)
            if cut is not None and cut.epoch == point.epoch and cut.earliest_seq < point.seq:
                remote.post(topic_path(name, "delete"), msgspec.json.encode({"before_seq": point.seq}))
    finally:
        remote.close()
