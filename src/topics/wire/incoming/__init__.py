"""What a request says.

    request_head  its route, query parameters and content type
    json          the rules for JSON bodies: depth, duplicates, unknown fields and the warnings about them
    requests      the bodies as structs, and their decoders
    cursor_requests  those of the named cursors
    schedule_requests  those of the schedules

Never looks at what the server has: a request is right or wrong by itself.
"""
