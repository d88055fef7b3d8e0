"""What is answered and streamed, as bytes.

    records       stored records as JSON, by splicing
    render_cache  what was rendered of records in memory, for the next who want the same
    replies       bodies of answers and errors; errors as clients read them
    live_json     what streams and sockets say about a topic
    sse           server-sent events, and the ids by which a client resumes
    ws_messages   WebSocket messages, both ways

Never parses a payload, and never decides what a reader may see.
"""
