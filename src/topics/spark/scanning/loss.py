"""Loss is never silent: what happens when a range has a gap (`docs/spec/pipeline.md#sec-10`). One place for all
readers."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Sequence

from topics.errors import DataLoss
from topics.spark.options import OnLoss
from topics.spark.planning.cut import LostSeqs

log = logging.getLogger("topics.spark")


class LossWarning(UserWarning):
    """Records in a range that was read are lost."""


def report_gaps(topic: str, gaps: Iterable[LostSeqs], on_loss: OnLoss) -> Sequence[LostSeqs]:
    """The gaps that must appear as rows; raises DataLoss where a gap is to stop the read."""
    found = tuple(gaps)
    if not found:
        return ()
    if on_loss == "fail":
        gap = found[0]
        raise DataLoss(topic=topic, gap_from=gap.gap_from, gap_to=gap.gap_to, reason=gap.reason)
    if on_loss == "rows":
        return found
    for gap in found:
        text = f"records {gap.gap_from}..{gap.gap_to} of topic {topic!r} are lost ({gap.reason}); reading goes on"
        log.warning(text)
        warnings.warn(text, LossWarning, stacklevel=2)
    return ()
