"""The answer to a request that the application failed on."""

from topics.errors import Internal, TopicsError
from topics.net.messages import Response, error_response
from topics.server.hub import log


def failure_response(error: Exception) -> Response:
    """A refusal that was raised is told as it is; a bug is logged, and told as nothing but that."""
    if isinstance(error, TopicsError):
        return error_response(error)
    log.error("a request failed", exc_info=error)
    return error_response(Internal())
