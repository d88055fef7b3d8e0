"""Scanning: tasks to Arrow record batches. Runs on the executors.

schema          the columns of the table, for Spark and for Arrow
task_scan       reads what a task names, from files or from a server
newest_rows     of what a task reads, the newest row of each tag
small_blocks    blocks of any topics that are too small to be read alone
arrow_columns   decoded frames become Arrow arrays, filtered

Stateless: a task that runs again gives the same rows. Never skips a record that fails its checksum.
"""
