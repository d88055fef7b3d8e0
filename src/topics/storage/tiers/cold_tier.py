"""ColdTier: the one cold root of a data directory, and whether it may be used (`docs/spec/storage.md#sec-9-2` and
`docs/spec/storage.md#sec-13-5`).

    unclaimed   nobody owns it yet; it becomes ours once a snapshot with our instance is durable
    lost        it served before and does not answer, or shows no OWNER: looked at again, at most once a second
    ours        its OWNER names us

Always holds: no data directory is taken for a store; no byte of a store is used before its OWNER was checked, so a
folder that is not mounted, or somebody else's bucket, is never taken for ours; what is missing in a store that has lost
its OWNER is not called damage. Calls block and run on the cold pool, except those of a start.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final, Protocol, TypeVar

from topics.errors import ColdStoreMismatch, ConfigError
from topics.formats.file_names import LOCK, parse_topic_dir, topic_dir_name
from topics.storage.fs import Buffer, Fs, make_dirs, remove_tree
from topics.storage.tiers.object_store import PROBE, open_object_root
from topics.storage.tiers.stores import LocalStore, NoSuchObject, Part, SegmentStore, cold_owner, write_owner

T = TypeVar("T")

RETRY_S: Final = 1.0
"""How often a store that is lost is asked again."""


class ColdRoot(Protocol):
    """A place for a whole cold tier."""

    @property
    def label(self) -> str: ...
    @property
    def in_place(self) -> bool: ...
    def store(self, topic_id: int) -> SegmentStore: ...
    def uri(self, topic_id: int) -> str:
        """Where a topic's segments lie, as readers of the files want it."""

    def is_data_dir(self) -> bool:
        """Whether hot segments lie here, under the names that cold ones would get."""

    def read_owner(self) -> str | None: ...
    def write_owner(self, instance: str) -> None: ...
    def probe(self) -> None:
        """OSError if nothing can be written."""

    def topic_ids(self) -> list[int]: ...
    def remove_topic(self, topic_id: int) -> None: ...


class FolderRoot:
    in_place = True

    def __init__(self, fs: Fs, path: str) -> None:
        self._fs = fs
        self.label = path

    def store(self, topic_id: int) -> LocalStore:
        return LocalStore(self._fs, self._path(topic_id))

    def _path(self, topic_id: int) -> str:
        return f"{self.label}/topics/{topic_dir_name(topic_id)}"

    def uri(self, topic_id: int) -> str:
        return os.path.abspath(self._path(topic_id))

    def is_data_dir(self) -> bool:
        return self._fs.exists(f"{self.label}/{LOCK}")

    def read_owner(self) -> str | None:
        return cold_owner(self._fs, self.label)

    def write_owner(self, instance: str) -> None:
        write_owner(self._fs, self.label, instance)

    def probe(self) -> None:
        make_dirs(self._fs, self.label)
        path = f"{self.label}/{PROBE}"
        self._fs.open(path, "create").close()
        self._fs.unlink(path)

    def topic_ids(self) -> list[int]:
        try:
            found = map(parse_topic_dir, self._fs.listdir(f"{self.label}/topics"))
        except FileNotFoundError:
            return []
        return sorted(topic_id for topic_id in found if topic_id is not None)

    def remove_topic(self, topic_id: int) -> None:
        remove_tree(self._fs, self._path(topic_id))


def open_cold_root(location: str, fs: Fs) -> ColdRoot:
    """The root that `TOPICS_COLD_DIR` names; ConfigError when it names none. Nothing is touched yet."""
    scheme, mark, path = location.partition("://")
    if mark and scheme != "file":
        return open_object_root(location)
    folder = path if mark else location
    if not folder.strip() or "\0" in folder or (mark and not folder.startswith("/")):
        raise ConfigError(f"TOPICS_COLD_DIR is neither a path nor a URI: {location!r}")
    return FolderRoot(fs, folder.rstrip("/") or "/")


class ColdTier:
    def __init__(self, root: ColdRoot, *, monotonic: Callable[[], float]) -> None:
        self.root = root
        self.label = root.label
        self.in_place = root.in_place
        self.instance: str | None = None
        self.ours = False
        self.unclaimed = False
        self.starting = True
        self.answers = False
        """Whether the last call that asked the store had an answer."""
        self.reason = "it was not asked yet"
        self._monotonic = monotonic
        self._tried = 0.0
        self._lock = Lock()

    # --- start ----------------------------------------------------------------------------------------------------

    def has_owner(self) -> bool:
        """Whether somebody uses the store, as far as it answers."""
        try:
            return self.root.read_owner() is not None
        except OSError:
            return False

    def begin(self, instance: str | None, *, used: bool) -> None:
        """What a start makes of the store. `instance` is None without a snapshot; `used` says that segments of ours are
        recorded in it. ColdStoreMismatch refuses the start; nothing of ours was changed then."""
        self.instance = instance
        try:
            self._refuse_data_dir()
            owner = self.root.read_owner()
        except OSError as error:
            if not used:
                raise self._unusable(error) from error
            self._lose(str(error))
            return
        if owner is None:
            self.unclaimed = not used
            self._lose("nobody owns it yet" if not used else "it has no OWNER, as if it were not mounted")
        elif owner == instance or (instance is None and used):
            self.instance = owner
            self._win()
        else:
            raise ColdStoreMismatch(
                f"the cold store {self.label} belongs to another data directory (instance {owner}); "
                "set TOPICS_COLD_DIR to the one of this directory"
            )

    def probe_unclaimed(self) -> None:
        """A store that nobody owns has to prove that it can be written, before the start writes anything of ours."""
        if self.unclaimed:
            try:
                self.root.probe()
            except OSError as error:
                raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> ColdStoreMismatch:
        return ColdStoreMismatch(f"the cold store {self.label} cannot be used: {error}")

    def _refuse_data_dir(self) -> None:
        """A segment moved into a data directory would replace a hot one of the same name: another server's, or, where
        it is our own, the very file that is deleted once the move is done."""
        if self.root.is_data_dir():
            raise ColdStoreMismatch(
                f"the cold store {self.label} is a data directory itself; set TOPICS_COLD_DIR to a folder of its own"
            )

    def open(self, instance: str) -> None:
        """The start is over: from now on a lost store is looked for again."""
        self.instance = instance
        self.starting = False
        self._tried = self._monotonic() - RETRY_S

    # --- run time ---------------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """First use: write OWNER, unless somebody was faster. A snapshot with our instance is durable."""
        assert self.instance is not None
        if self.root.read_owner() is None:
            self.root.write_owner(self.instance)
        self.unclaimed = False
        self.confirm()

    def check(self) -> None:
        """OSError unless the store is ours; asks a lost one again if it is time."""
        if not self.ours:
            with self._lock:
                self._ask_again()

    def _ask_again(self) -> None:
        if self.ours:  # somebody else asked meanwhile
            return
        now = self._monotonic()
        if self.starting or self.unclaimed or now - self._tried < RETRY_S:
            raise OSError(self.reason)
        self._tried = now
        self.confirm()

    def confirm(self) -> None:
        """Look at OWNER now; OSError if it is not ours."""
        try:
            owner = self.root.read_owner()
        except OSError as error:
            self._lose(str(error))
            raise
        if owner != self.instance:
            what = "it has no OWNER, as if it were not mounted" if owner is None else f"it belongs to instance {owner}"
            self._lose(what)
            raise OSError(what)
        self._win()

    def _win(self) -> None:
        self.ours = self.answers = True
        self.reason = ""

    def _lose(self, reason: str) -> None:
        self.ours = self.answers = False
        self.reason = reason

    def failed(self, error: OSError) -> None:
        self.answers = False
        self.reason = str(error)

    def store(self, topic_id: int) -> GuardedStore:
        return GuardedStore(self, self.root.store(topic_id), self.root.uri(topic_id))

    def topic_ids(self) -> list[int]:
        self.check()
        return self.root.topic_ids()

    def remove_topic(self, topic_id: int) -> None:
        self.check()
        self.root.remove_topic(topic_id)


class GuardedStore:
    """A topic's store, usable only while the tier is ours."""

    def __init__(self, tier: ColdTier, inner: SegmentStore, uri: str) -> None:
        self._tier = tier
        self._inner = inner
        self.uri = uri
        self.label = tier.label
        self.in_place = tier.in_place

    def _call(self, call: Callable[[], T]) -> T:
        self._tier.check()
        try:
            value = call()
        except NoSuchObject:
            self._tier.confirm()
            raise
        except OSError as error:
            self._tier.failed(error)
            raise
        self._tier.answers = True
        return value

    def put(self, id: int, data: Buffer, idx: Buffer) -> None:
        self._tier.check()
        self._tier.confirm()  # a folder that is no longer mounted would take the bytes all the same
        self._call(lambda: self._inner.put(id, data, idx))

    def read_range(self, id: int, part: Part, offset: int, length: int) -> bytes:
        return self._call(lambda: self._inner.read_range(id, part, offset, length))

    def delete(self, id: int) -> None:
        self._call(lambda: self._inner.delete(id))

    def list(self) -> builtins.list[int]:
        return self._call(self._inner.list)

    def list_any(self) -> builtins.list[int]:
        """A start does not list objects topic by topic; what nobody needs is looked for afterwards, in one go."""
        if self._tier.starting and not self.in_place:
            raise OSError("not listed during a start")
        return self._call(self._inner.list_any)

    def exists(self, id: int, part: Part) -> bool:
        return self._call(lambda: self._inner.exists(id, part))

    def len(self, id: int, part: Part) -> int:
        return self._call(lambda: self._inner.len(id, part))

    def mark_deleted(self, id: int, offsets: Sequence[int], *, slots: Sequence[int] = ()) -> None:
        self._call(lambda: self._inner.mark_deleted(id, offsets, slots=slots))
