"""Jobs: workers of queues, over any door.

Modules, in reading order:

    handling      one job, from the call of its function to what became of it
    claims        the jobs that one worker holds: claimed, their leases kept, acked or given back
    executors     where functions run: threads, tasks of an event loop
    processes     where functions run: child processes
    job_spans     with TOPICS_OTEL: a span around each job
    worker_core   claims, executor and outcomes put together: the one worker behind every kind
    worker        Worker, AsyncWorker: a function that is called for each job
    job_app       JobApp: functions registered for queues, and one process that runs them all
    work          Work, AsyncWork: a loop over jobs

Never touches a transport: everything is a verb of a queue.
"""
