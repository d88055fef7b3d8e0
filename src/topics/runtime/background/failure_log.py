"""FailureLog: says once what keeps a repeated job from ending well, and once that it ends well again."""

from __future__ import annotations

import logging

from topics.storage.fs import NO_DESCRIPTORS


class FailureLog:
    """`job` begins a sentence: "checkpoint"."""

    def __init__(self, log: logging.Logger, job: str) -> None:
        self._log = log
        self._job = job
        self._told: str | None = None

    @property
    def sentence(self) -> str | None:
        """What an operator should know as long as it lasts."""
        return None if self._told is None else f"{self._job} fails and is tried again: {self._told}"

    def over(self, error: BaseException | None) -> None:
        told, self._told = self._told, None if error is None else _reason(error)
        if self._told is not None and self._told != told:
            self._log.warning("%s failed, it will be tried again: %s", self._job, self._told)
        elif self._told is None and told is not None:
            self._log.info("%s works again", self._job)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:
        return "no file descriptor is left; let this process open more files (ulimit -n)"
    return str(error)
