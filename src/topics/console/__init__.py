"""The web console: plain files, no build step. Served by `topics.api.endpoints.probes`."""
