"""Retention: what goes from a topic without a request, and how far its front has moved.

    floors      how far the front is lost, by cause; gaps in the middle
    rules       what TTL and caps take, and what a cursor holds back
    removal     the one place where records stop being live
    superseded  what is superseded by a newer record of its tag
    ceiling     seqs across restarts: what may have been handed out, what a crash lost

Never moves a floor back, and never looks at a clock: `now` is an argument.
"""
