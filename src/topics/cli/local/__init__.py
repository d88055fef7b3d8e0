"""Commands that need no server.

Modules, in reading order:

    serve     `topics serve`: the server itself
    config    `topics config`: every setting, and where its value comes from
    inspect   `topics inspect`: what a data directory holds; never writes
    bench     `topics bench`: what this machine can do
    tools     `topics doctor`, `completion`
"""
