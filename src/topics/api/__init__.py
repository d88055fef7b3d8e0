"""The api: one function per endpoint, from request to reply. It knows no protocol and opens no file.

`app` keeps the order of a request's steps; the modules beside it hold the endpoints, grouped by noun."""
