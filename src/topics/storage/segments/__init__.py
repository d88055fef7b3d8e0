"""Segments: the stored history of each topic, in pairs of `.data` and `.idx` files (storage.md section 6)."""
