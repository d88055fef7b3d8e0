"""The asyncio transport: listeners, connections, flow control, TLS, drain.

Protocol rules are in `topics.net`, endpoints in `topics.api`; this package moves bytes between them. Everything in it
runs on the loop's thread, without a task per request or a timer per connection.
"""
