"""Kernels: the arithmetic. The public surface is `ramet.kernels.ops`; this file stays a docstring."""
