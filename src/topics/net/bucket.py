"""Bucket: how often a peer may do something that costs us work, with a burst allowed."""


class Bucket:
    """Fills by `per_s` tokens a second up to `burst`; time comes in as an argument and may stand still."""

    __slots__ = ("_burst", "_per_s", "_since_s", "_tokens")

    def __init__(self, *, per_s: float, burst: float, now_s: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._tokens = burst
        self._since_s = now_s

    def take(self, count: int, now_s: float) -> bool:
        """False once more was taken than the bucket held."""
        self._tokens = min(self._burst, self._tokens + (now_s - self._since_s) * self._per_s) - count
        self._since_s = now_s
        return self._tokens >= 0
