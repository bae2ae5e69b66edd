"""ramet: a prefix-caching serving runtime for agent programs."""

__version__ = "0.1.0"

__all__ = ["__version__"]
