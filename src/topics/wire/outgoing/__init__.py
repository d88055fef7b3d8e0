"""What is answered and streamed, as bytes.

    records       stored records as JSON, by splicing
    record_table  stored records as an Arrow table
    render_cache  rendered records near the head of watched topics, for their watchers
    replies       bodies of answers and errors; errors as clients read them
    live_json     what streams and sockets say about a topic
    sse           server-sent events, and the ids by which a client resumes
    ws_messages   WebSocket messages, both ways

Never parses a payload, and never decides what a reader may see.
"""
