"""Planning: what a read covers, as tasks. Runs on the driver.

cut            frozen values: what a topic holds at one moment; what happens where records are lost
tasks          ranges of a cut become tasks of about equal size; pure
batch          options and cuts become the tasks of a batch read
offsets        JSON offsets of a stream, and arithmetic on them; pure
stream         the planner of a streaming query
query_cursor   a named cursor that stands where a query has committed

Never decodes a record, and never keeps a file open after the plan is made.
"""
