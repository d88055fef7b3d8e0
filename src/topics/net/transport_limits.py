"""Limits of the transport that the contract leaves to us, with their unit and their reason.

What `docs/spec/http-api.md` fixes stands in `topics.limits`; these bound what one peer may make the process hold or do.
"""

from topics.limits import KIB, MIB

# --- HTTP/1 heads and framing ----------------------------------------------------------------------------------------

HEAD_BYTES_MAX = 128 * KIB  # request line and fields; a resume id of 256 topics with the longest names has 96 KiB
BLANK_LINES_MAX = 4  # before a request line, from clients that end a body with one; more is garbage
FIELDS_MAX = 128  # header fields of one request; browsers send about twenty
METHOD_BYTES_MAX = 32  # longer than any registered method: garbage is told from a request within 33 bytes
TEMPLATE_BYTES_MAX = 4 * KIB  # a longer head is parsed anew each time rather than remembered by its connection
CONTENT_LENGTH_DIGITS_MAX = 18  # below 2**63, so that no arithmetic on it can surprise; more count as so many nines
CHUNK_LINE_BYTES_MAX = 512  # size line, with an extension, which nobody uses
TRAILER_BYTES_MAX = 8 * KIB
CHUNKS_FREE = 4096  # small chunks that cost nothing extra; beyond them chunks must average:
CHUNK_BYTES_MEAN_MIN = 16  # bytes, so that one read of the socket is not a hundred thousand turns of a loop

# --- connections -----------------------------------------------------------------------------------------------------

HEAD_TIMEOUT_S = 15.0  # from the first byte of a head to its end, however it trickles
BODY_GRACE_S = 30.0  # a body may take this long, and then
BODY_BYTES_PER_S_MIN = 1 * KIB  # one second more for every so many bytes that came
PIPELINE_MAX = 64  # requests of one connection in work at once; more are left in the socket
STREAM_INPUT_BYTES_MAX = 64 * KIB  # what a client may send behind a request that became an endless stream
WRITE_STALL_S = 30.0  # a client that takes no byte of a finished answer for this long is gone
LINGER_S = 2.0  # wait for the peer's end after our last byte, so that no reset overtakes the answer
DRAIN_BYTES_MAX = 256 * MIB  # of a refused body that are read and thrown away
DRAIN_S = 30.0  # and the longest time that takes
KEEP_BYTES_MAX = 1 * MIB  # a refused body with at most this much to come keeps its connection
BODIES_BYTES_FACTOR = 8  # unfinished bodies of all connections together, in units of the body limit
BODIES_BYTES_MIN = 64 * MIB
CONNECTIONS_MAX = 65_536
WRITE_HIGH_BYTES = 256 * KIB  # more waiting output than this: no further request of that connection is read
WRITE_LOW_BYTES = 64 * KIB
UNSENT_BYTES_MAX = 8 * MIB  # more answers made for a connection than it takes: its next requests read no page yet
UNSENT_ALL_BYTES_MAX = 256 * MIB  # everything that waits to be sent, on all connections and whatever the protocol
UNSENT_LARGE_BYTES_MAX = 192 * MIB  # more than this held: only small answers and frames are made, so that those who ask
UNSENT_SMALL_BYTES = 256 * KIB  # for little, no more than this, need not wait for those who hold much
UNSENT_FREE_BYTES = 16 * KIB  # and a peer that has taken everything gets as much as this whatever the others hold
BUDGET_GRACE_S = 5.0  # no room for so long: connections that took less than
TAKEN_BYTES_MIN = 64 * KIB  # meanwhile are cut, those that hold most first

# --- HTTP/2 ----------------------------------------------------------------------------------------------------------

H2_STREAMS_MAX = 2048  # of a connection at once; the contract asks for 1024
H2_UNSENT_BYTES_MAX = 64 * MIB  # if a peer lets one stream after the other stand; then new streams are refused
H2_RESETS_PER_S_MAX = 200  # streams a peer may cancel, as a mean
H2_RESETS_BURST = H2_STREAMS_MAX  # and at once: closing a page cancels all its streams, and leaves its writes alone
H2_CONTROL_PER_S_MAX = 500  # pings, settings and other frames that cost us work but carry nothing
H2_CONTROL_BURST = 2000
H2_TABLE_BYTES_MAX = (
    4 * KIB
)  # of the peer's table for our heads that we use: each field of each head is looked up in it
H2_BACKLOG_BYTES_MAX = 1 * MIB  # unread control frames and heads of ours before the peer counts as gone

# --- content ---------------------------------------------------------------------------------------------------------

INFLATE_INLINE_BYTES_MAX = 256 * KIB  # decoded on the loop; the rest of a larger body is decoded off it
WS_CONTROL_PENDING_BYTES_MAX = 1 * MIB  # unread pongs
