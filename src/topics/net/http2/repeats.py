"""RepeatingDecoder: HPACK blocks that came before are not decoded again.

A client that asks the same once more sends a block of nothing but indices, the same bytes each time. Always holds: such
a block changes no table, and what it means stays true until another kind of block comes, which is decoded as ever."""

from __future__ import annotations

from collections.abc import Iterable

from hpack import Decoder, HeaderTuple

from topics.net.http2.fields import checked

KNOWN_MAX = 16
"""Different heads of one connection that are remembered."""
_INDEXED = 0x80  # of a field's first byte, and of the whole field for the first 126 indices


class RepeatingDecoder(Decoder):
    def __init__(self, max_header_list_size: int) -> None:
        super().__init__(max_header_list_size)
        self._known: dict[bytes, list[HeaderTuple]] = {}

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        has_right_table = self.header_table_size <= self.max_allowed_table_size
        if not (raw and data and min(data) >= _INDEXED and has_right_table):
            self._known.clear()
            return self._decode(data, raw)
        fields = self._known.get(data)
        if fields is None:
            fields = self._decode(data, raw)
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[bytes(data)] = fields
        return list(fields)

    def _decode(self, data: bytes, raw: bool) -> list[HeaderTuple]:
        return list(super().decode(data, raw))


class CheckingDecoder(RepeatingDecoder):
    """Gives blocks as the `h2` library may see them; those that are known are checked already."""

    def _decode(self, data: bytes, raw: bool) -> list[HeaderTuple]:
        return checked(super()._decode(data, raw))
