"""The api: one function per endpoint, from request to reply, the same for every protocol.

    build        puts the application together and wires it to the kernel: start here
    app          the way of one request: head, body, endpoint, answer
    fast_append  the short way of small writes that repeat a head
    endpoints/   the endpoints, grouped by noun
    live/        streams and sockets: what is pushed to clients
    metrics      what the process counts

Never knows a protocol (`topics.net.messages` is all it sees of a connection), and never opens a file.
"""
