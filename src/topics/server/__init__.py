"""The server: one process, its listeners, its connections. Everything but start and stop runs on the loop's thread.

process      settings in, exit status out: recover, listen, serve, drain
server       Server: accepts and drains; Sniffer: what does a new connection speak?
listen       listening sockets, and whether only this machine reaches them
key_source   where the keys come from, and reading them again
tls          certificates; TlsPacer, which shows how much of the output a TLS peer has taken
span_export  where the spans of traced requests go
allocator    what the C library does with freed memory
connections  the connections themselves, by protocol

Never knows an endpoint (`topics.api`) or a rule of a protocol (`topics.net`); has no task per request and no timer per
connection.
"""
