"""Benchmarks. `ramet bench serve` measures any OpenAI-compatible server."""
