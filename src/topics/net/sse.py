"""Server-sent events: the frames of `http-api.md` section 17.5, as bytes.

Lines end in one LF and a payload never breaks a line; what is inside `data` is the caller's. Called by the streams of
`topics.api`, once per frame.
"""

HEARTBEAT = b": hb\n\n"
RETRY = b"retry: 2000\n\n"
CONTENT_TYPE = b"text/event-stream"
STREAM_HEADERS = (
    (b"Content-Type", CONTENT_TYPE),
    (b"Cache-Control", b"no-store"),
    (b"X-Accel-Buffering", b"no"),
)

_LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")


def one_line(text: bytes) -> bytes:
    """The text with every CR and LF as one space each: JSON white space may be any of them, a frame's line may not."""
    if b"\n" in text or b"\r" in text:
        return text.translate(_LINE_BREAKS)
    return text


def frame(id: bytes | None, event: bytes, data: bytes) -> bytes:
    """One frame; `id` and `event` are our own words and hold no line break."""
    data = one_line(data)
    if id is None:
        return b"event: %b\ndata: %b\n\n" % (event, data)
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (id, event, data)
