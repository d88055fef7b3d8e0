"""Drivers: the worlds in which a kernel runs.

    driver    what the kernel needs of any of them
    aio       an asyncio loop owns the engine: the server
    blocking  whoever holds the lock owns it: the embedded library
    pools     the threads of a real process

The simulated one is in `topics.testing`. A driver never looks into the engine: it carries out what it is given.
"""
