"""The HTTP contract without I/O: endpoint table, request and reply codecs, SSE and WebSocket frames, keys and rights.

Shared by the server and the client. Bytes in, values out, and the other way round; no module here opens anything.
"""
