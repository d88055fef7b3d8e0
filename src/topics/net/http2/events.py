"""What an HTTP/2 session reports, and nothing that only HTTP/2 knows about."""

from typing import NamedTuple

from topics.net.messages import RequestHead


class H2Request(NamedTuple):
    stream_id: int
    head: RequestHead
    content_length: int | None


class H2BadRequest(NamedTuple):
    """A request that cannot be understood but whose stream can still be answered."""

    stream_id: int
    reason: str
    is_malformed: bool  # so that its stream has to end with an error


class H2Body(NamedTuple):
    stream_id: int
    data: bytes
    credit: int  # what `H2Session.acknowledge` gives back; padding counts


class H2BodyEnd(NamedTuple):
    stream_id: int


class H2Reset(NamedTuple):
    """The peer gave up one stream."""

    stream_id: int


class H2Window(NamedTuple):
    """More may be sent: on one stream, or on all if `stream_id` is 0."""

    stream_id: int


class H2Over(NamedTuple):
    """The connection must end; what remains to be said is in the output."""

    reason: str


H2Event = H2Request | H2BadRequest | H2Body | H2BodyEnd | H2Reset | H2Window | H2Over
