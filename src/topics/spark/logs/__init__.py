"""Logs: where topics are read from, and the requests that the pipeline makes to a server.

log           the `Log` protocol, its address, and which topics a read wants
directory     topics in the files of a data directory or a cold directory
server_log    topics of a running server: manifests, frames, and files that are proven to be the server's
read_files    files below a root, local or in an object store; a segment's two files, opened as one
bulk_client   HTTP calls to a server, with retries

Never writes a file, and never takes a lock: the server may be running.
"""
