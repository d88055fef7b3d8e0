"""Reported errors: from the wire back into the tree of `topics.errors`. Used by clients."""

from __future__ import annotations

from topics.errors import RETRY_AFTER_S, Detail, Internal, InvalidRequest, RequestRefused, TopicsError

_BY_CODE: dict[str, type[TopicsError]] = {
    cls.code: cls for root in (RequestRefused, TopicsError) for cls in root.__subclasses__() if "code" in vars(cls)
} | {"invalid_request": InvalidRequest, "internal": Internal}


def error_from_wire(*, code: str, status: int, message: str, detail: Detail | None = None) -> TopicsError:
    """The error a server reported. A code we do not know keeps its code and status, and is retryable on 429 and 503."""
    cls = _BY_CODE.get(code, TopicsError)
    error = cls.__new__(cls)
    TopicsError.__init__(error, message, detail=detail)
    if cls is TopicsError:
        after_s = RETRY_AFTER_S if status in (429, 503) else None
        vars(error).update(code=code, status=status, retryable=after_s is not None, retry_after_s=after_s)
    return error
