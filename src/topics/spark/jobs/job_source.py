"""Where a job reads from, as options of the `topics` source: shared by archive and stats."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field

from topics.errors import ConfigError
from topics.spark.logs.log import open_log
from topics.spark.options import read_options
from topics.spark.planning.batch import address_of, wanted_cuts
from topics.spark.planning.cut import TopicCut


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSource:
    """A directory or a server, and the topics wanted: names with commas, or a prefix with a trailing `*`."""

    path: str | None = None
    cold_path: str | None = None
    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    api_key_file: str | None = None
    topics: str = "*"

    def options(self, **more: str) -> dict[str, str]:
        """Options of a read."""
        given = {
            "path": self.path,
            "coldPath": self.cold_path,
            "url": self.url,
            "apiKey": self.api_key,
            "apiKeyFile": self.api_key_file,
            "subscribePattern" if self.topics.endswith("*") else "subscribe": self.topics,
        }
        return {name: value for name, value in given.items() if value is not None} | more

    def cuts(self) -> dict[str, TopicCut]:
        """The topics at this moment; raises ConfigError for what cannot be read."""
        if (self.path is None) == (self.url is None):
            raise ConfigError("give exactly one of --path (a data directory) and --url (a running server)")
        options = read_options(self.options())
        with closing(open_log(address_of(options))) as log:
            return wanted_cuts(log, options)

    @property
    def shown(self) -> str:
        return self.path or self.url or "?"
