"""topics: a durable event engine for one machine.

Owns the public names of the package and nothing else: each is loaded on first use, so importing `topics` costs nothing.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
