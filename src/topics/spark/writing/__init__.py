"""Writing: rows of a DataFrame into topics, through a server.

sink   PySpark's writer: chunks, idempotency keys, retries
rows   a row becomes a record: JSON texts as Spark spells them, checked as the server would check them

Never opens a data directory, and never sends a row under a key that a retry could not repeat.
"""
