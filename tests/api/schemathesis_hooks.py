"""What schemathesis is told about our server, beyond `/openapi.json`. Loaded by schemathesis itself.

Most names come from a handful, so that calls meet topics that exist; nothing waits long; streams are asked for where
they are refused, since one that is granted does not end."""

from __future__ import annotations

import random
from typing import Any

import schemathesis
from schemathesis.core.parameters import ParameterLocation

LOG, QUEUE, ROUTER = "fuzz-log", "fuzz-queue", "fuzz-log->fuzz-copy"
WAIT_MS_MAX = 5
NOWHERE = "nowhere."
STREAMS = {"work", "watch_stream"}
_chance = random.Random(1)


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    if path_parameters and "topic" in path_parameters and _chance.random() < 0.7:
        path_parameters["topic"] = _chance.choice((LOG, QUEUE))
    if path_parameters and "router" in path_parameters and _chance.random() < 0.5:
        path_parameters["router"] = ROUTER
    return path_parameters


@schemathesis.hook
def before_call(context: Any, case: Any, **_: Any) -> None:
    if isinstance(case.body, dict) and isinstance(case.body.get("wait_ms"), int):
        case.body["wait_ms"] = min(case.body["wait_ms"], WAIT_MS_MAX)
    if case.operation.definition.raw.get("operationId") in STREAMS and "topic" in case.path_parameters:
        asked = str(case.path_parameters["topic"])
        case.path_parameters["topic"] = LOG if asked == LOG else NOWHERE + asked


@schemathesis.check
def a_wrong_body_is_refused(ctx: Any, response: schemathesis.Response, case: Any) -> None:
    """As `negative_data_rejection`, for bodies only: a query that cannot be read means the default."""
    part = None if case.meta is None else case.meta.components.get(ParameterLocation.BODY)
    if part is not None and part.mode.is_negative:
        assert response.status_code >= 400, f"{response.status_code} for a body against its schema"
