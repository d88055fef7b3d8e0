"""Segments: the stored history of each topic, in pairs of `.data` and `.idx` files (`docs/spec/storage.md#sec-6`)."""
