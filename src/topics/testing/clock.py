"""Simulated time and host: they move only when a test says so."""


class SimClock:
    """A clock that stands still. `advance` moves both hands; `set_wall_ms` is an operator turning the wall clock."""

    def __init__(self, wall_ms: int = 1_755_000_000_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = 0

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic(self) -> float:
        return self._monotonic_ms / 1000

    def advance(self, elapsed_ms: int) -> None:
        if elapsed_ms < 0:
            raise ValueError("time does not run backwards; use set_wall_ms to turn the wall clock")
        self._wall_ms += elapsed_ms
        self._monotonic_ms += elapsed_ms

    def set_wall_ms(self, wall_ms: int) -> None:
        self._wall_ms = wall_ms


class SimHost:
    """A host whose kernel dies when told to; `boot_id=""` is one that does not say."""

    def __init__(self, boot_id: str = "boot-1") -> None:
        self._boot_id = boot_id
        self._boots = 1

    def boot_id(self) -> str:
        return self._boot_id

    def reboot(self) -> None:
        self._boots += 1
        self._boot_id = f"boot-{self._boots}"
