"""HTTP/2 without I/O: `H2Session` turns bytes into requests and answers into bytes, on top of the `h2` library.

(The package is not called `h2`, so that a reader always knows which of the two is meant.)
"""
