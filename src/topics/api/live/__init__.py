"""Live delivery: sessions, streams and sockets, and what they are sent.

    live              puts the parts below together
    sessions          watch sessions: what is watched, and how far it was delivered
    watch             the watch endpoints, and the stream of one session on one connection
    sockets           the WebSocket endpoint, and one socket with its commands
    work_endpoint     jobs as server-sent events
    subscription      one connection's interest in one topic
    broadcast         subscriptions that have caught up, served as one
    batches           what one read found, rendered for all who want the same
    sse_frames        a batch as server-sent events
    outbound          what a connection holds for its client, and what becomes of slow clients
    streams           all open streams and sockets: caps, heartbeats, shutdown
    history_throttle  how much of the process reading old history may take

Never waits for a client, and never holds more for one than its bound.
"""
