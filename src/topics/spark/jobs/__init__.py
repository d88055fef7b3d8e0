"""Jobs over whole topics: archive, replay, verify, stats (`docs/spec/pipeline.md#sec-7`).

Each is a function of plain values that runs on a Spark session, tells its progress to a `Reporter`, and remembers what
it has finished, so that starting it again after an interruption goes on where it was.
"""
