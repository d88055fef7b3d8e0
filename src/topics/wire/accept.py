"""`Accept`: the two questions the contract asks of it, by substring and never by weight. Called by api."""


def takes_events(accept: bytes | None) -> bool:
    """Whether a stream may be sent; if not, 406."""
    return not accept or b"text/event-stream" in accept or b"*/*" in accept


def wants_json(accept: bytes | None) -> bool:
    """Whether metrics go out as JSON instead of text."""
    return accept is not None and b"application/json" in accept
