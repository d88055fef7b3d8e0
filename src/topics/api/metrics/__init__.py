"""Metrics: what the process counts, as Prometheus text or as one JSON object (`docs/spec/http-api.md#sec-20-3`).

    metrics_endpoint  answers a scrape, in steps that are short however many topics there are: start here
    topic_survey      what is counted per topic, router and queue
    server_families   what is counted of log, storage, delivery and process
    request_stats     answers and their latencies, counted by the way of every request
    exposition        families as text

Never counts on the way of a record more than one addition, and never waits for a file.
"""
