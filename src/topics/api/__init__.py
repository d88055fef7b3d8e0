"""The api: one function per endpoint, from request to reply, the same for every protocol.

    build          puts the application together and wires it to the kernel: start here
    app            the way of one request: head, body, endpoint, answer
    refusal_log    requests that were refused for their key, in the log
    fast_append    the short way of small writes that repeat a head
    request_spans  requests with a trace context as spans, where that is wanted
    live_spans     deliveries and WebSocket commands with a trace context as spans, likewise
    endpoints/     the endpoints, grouped by noun
    live/          streams and sockets: what is pushed to clients
    metrics/       what the process counts

Never knows a protocol (`topics.net.messages` is all it sees of a connection), and never opens a file.
"""
