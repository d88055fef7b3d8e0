"""Endpoints: each decodes a request, asks the engine and answers through its `RequestCall`.

    records  write, diff with long poll, delete       topics   create, show, list, drop
    queues   claim, ack, nack, extend                 routers  create, show, list, drop
    cursors  commit, reset, take over, list, drop     latest_table   the newest record of each tag
    tokens   what web pages show to open streams
    schedules  create, show, list, drop, run, pause
    bulk     manifest of segments, records in bulk    probes   liveness, readiness, rights, contract, web console

Never decides what core or the engine decide, and never renders anything large on the loop.
"""
