"""Who may do what.

    keys           the keys of a server and their scopes; which client a request belongs to
    key_file       keys with names and expiry, in a file
    stream_tokens  what a web page shows instead of a key
    auth           what a request may do, by its key and by the web page it comes from
    visible_names  names in requests, answers and errors that a key may not see

Pure decisions: never counts requests (`topics.api.app` does), and never stores a secret.
"""
