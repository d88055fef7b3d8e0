"""The web console: built files; their sources are in `console/` of the repository (`make console`).

Served by `topics.api.endpoints.probes`."""
