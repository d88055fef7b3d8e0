"""BareTransport: what every transport driven by hand answers a connection."""

from __future__ import annotations


class BareTransport:
    def get_extra_info(self, _: str) -> tuple[str, int]:
        return "127.0.0.1", 1

    def set_write_buffer_limits(self, **_: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0
