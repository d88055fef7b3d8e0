"""TODO package map."""
