"""KeySource: where the keys of a server come from, and reading them again (`docs/spec/http-api.md#sec-8-9`).

The environment is read once; a key file again on every SIGHUP. A file that is wrong at start refuses the start; later
it leaves the keys as they are. Called by `ServerProcess`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from topics.config import Settings
from topics.errors import ConfigError
from topics.wire.access.key_file import parse_key_file
from topics.wire.access.keys import Key, KeyRing, listed_keys

log = logging.getLogger("topics.access")


class KeySource:
    def __init__(self, settings: Settings, *, now_ms: Callable[[], int]) -> None:
        """Raises ConfigError."""
        self._listed = listed_keys(settings.api_keys)
        self._path = settings.api_keys_file
        self._now_ms = now_ms
        has_keys = self._listed is not None or self._path is not None
        self.ring = KeyRing(self._read(), is_fixed=self._path is None) if has_keys else None
        if self.ring is not None:
            self.ring.expire(now_ms())

    @property
    def has_file(self) -> bool:
        return self._path is not None

    def _read(self) -> list[Key]:
        listed = self._listed or []
        if self._path is None:
            return listed
        try:
            text = Path(self._path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise ConfigError(f"TOPICS_API_KEYS_FILE: {self._path} cannot be read: {why}") from None
        return listed + parse_key_file(text, self._path)

    def reload(self, ended: Callable[[Iterable[Key]], None]) -> None:
        """On SIGHUP; `ended` is told which keys are no longer what they were."""
        assert self.ring is not None
        try:
            gone = self.ring.replace(self._read())
        except ConfigError as error:
            log.error("the keys stay as they were: %s", error)
            return
        gone += self.ring.expire(self._now_ms())
        ended(gone)
        names = ", ".join(sorted(key.name for key in gone)) or "none"
        log.info("keys were read again: %d keys; removed or changed: %s", len(self.ring), names)
