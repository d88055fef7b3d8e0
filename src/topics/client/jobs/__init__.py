"""Jobs: workers of queues, over any door.

    claims   the jobs that one worker holds: claimed, their leases kept, given back
    worker   Worker, AsyncWorker: a function that is called for each job
    work     Work, AsyncWork: a loop over jobs

Never touches a transport: everything is a verb of a queue.
"""
