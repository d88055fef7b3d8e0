"""Connections: bytes between asyncio's transports and the application, in HTTP/1, HTTP/2 and WebSocket.

hub            Hub: what all connections share; Peer: what each one has; DeadlineWheel
h1_connection  H1Connection: reads requests in order             h1_answers  H1Exchange, H1Output: answers in order
h2_connection  H2Connection: reads streams                       h2_answers  H2Exchange, H2Output: answers, framed
ws_connection  WsConnection: an open WebSocket
answer_stream  AnswerStream: an answer of unknown length, in either HTTP version
budget         how much may be made for peers before they take it
content        gzip off request bodies and on responses
callbacks      calls into the application, whose mistakes end no connection

Never waits: every call returns at once, and what has to wait is a callback.
"""
