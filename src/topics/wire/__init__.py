"""The HTTP contract without I/O, shared by the server and the clients.

    endpoints  the table of routes, from which routing, rights and the OpenAPI document follow
    incoming/  what a request says: its head, its JSON, its body as a struct
    access/    who may do what: keys, web pages, names that a key may not see
    outgoing/  what is answered and streamed, as bytes
    cursors    opaque tokens for pages of lists
    openapi    the contract as a document

Bytes in, values out, and the other way round. Never opens anything, and never knows the engine.
"""
