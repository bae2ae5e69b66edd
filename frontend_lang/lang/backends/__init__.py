"""ramet.lang.backends owns where a program's tokens come from. It knows requests, not programs."""
