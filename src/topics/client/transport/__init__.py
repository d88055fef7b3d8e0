"""Transport: calls of a server over HTTP/1.1.

    http_messages   calls and answers as bytes, without I/O
    address         where a server is, and the key to it
    retry           whether a failed call is tried again, and when
    connection      one connection, over a blocking socket or an asyncio stream
    transport       the pool of connections; runs calls
    forks           tells whoever has connections or keys that its process was forked

Knows no topic and no verb.
"""
