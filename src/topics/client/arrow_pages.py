"""Arrow pages: one page of a topic as a table, out of an Arrow stream, and what the page says beside its records.

pyarrow is imported when a table is asked for: the library works without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from topics.errors import ConfigError, TopicsError
from topics.model.position import parse_token
from topics.model.results import ReadResult, Tombstone

if TYPE_CHECKING:
    import pyarrow as pa

_STREAM_MARK: Final = b"\xff\xff\xff\xff"
_decode_tombstone = msgspec.json.Decoder(Tombstone | None).decode


class TablePage(NamedTuple):
    """The records are in `table`; of `told`, only what a page says beside them counts."""

    table: pa.Table
    told: ReadResult


def pyarrow() -> Any:
    """The module, or one sentence on how to get it."""
    needs_pyarrow("a table")
    import pyarrow
    import pyarrow.ipc

    return pyarrow


def needs_pyarrow(what: str) -> None:
    """Raises where it is not installed, with one sentence on how to get it."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{what} needs pyarrow: pip install 'topicsdb[arrow]'") from error


def read_page(stream: bytes) -> TablePage:
    """A page as a server or the engine renders it."""
    if not stream.startswith(_STREAM_MARK):
        raise TopicsError("the server does not answer with Arrow tables; it may be older than this client")
    table = pyarrow().ipc.open_stream(stream).read_all()
    metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    end, head = parse_token(metadata["topics.next"]), int(metadata["topics.head_seq"])
    told = ReadResult(
        topic=metadata["topics.topic"],
        records=(),
        next_from_seq=end.seq,
        head_seq=head,
        earliest_seq=int(metadata["topics.earliest_seq"]),
        caught_up=metadata["topics.caught_up"] == "true",
        tombstone=_decode_tombstone(metadata["topics.tombstone"]),
        lag=head - end.seq,
        next=metadata["topics.next"],
    )
    return TablePage(table, told)
