"""The nouns: frozen values that cross the borders between parts. No I/O, no clock, no policy but their own limits."""
