"""Sans-I/O protocols: bytes in, events out; values in, bytes out.

Nothing in this package opens a socket, reads a clock or knows an event loop; `topics.server` does all three.
"""
