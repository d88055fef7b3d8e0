"""HTTP/1.1, HTTP/2 and WebSocket without I/O: bytes in, events out; values in, bytes out.

messages          what passes between a connection and the application: Request, Response, Responder, sinks
h1_reader         HTTP/1 bytes as heads and bodies            h1_chunked      chunked bodies of HTTP/1
h1_renderer       responses as HTTP/1 bytes                   http_grammar    patterns of heads, early refusal
h2_session        one HTTP/2 connection over the `h2` library h2_head         header blocks, checked, as RequestHead
websocket         the handshake, and one socket's messages
transport_limits  what one peer may make the process hold or do

Never opens a socket, reads a clock or knows an event loop: `topics.server` does all three.
"""
