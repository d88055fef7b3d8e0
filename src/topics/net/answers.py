"""The error envelope of `docs/spec/http-api.md#sec-5`, for refusals that the transport itself has to give.

Status, code and detail come from the error tree, so an answer given here reads like one given by an endpoint.
"""

import msgspec

from topics.errors import RETRY_AFTER_S, TopicsError
from topics.net.messages import Headers, Response

_RETRY_AFTER: Headers = ((b"Retry-After", b"%d" % RETRY_AFTER_S),)


def error_response(error: TopicsError) -> Response:
    envelope: dict[str, object] = {"code": error.code, "message": error.message}
    if error.detail is not None:
        envelope["detail"] = error.detail
    headers = _RETRY_AFTER if error.status in (429, 503) else ()
    return Response(error.status, msgspec.json.encode({"error": envelope}), headers=headers)
