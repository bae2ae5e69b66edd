"""The backend of programs that name none. Process-wide, since programs are written without one."""

from __future__ import annotations

from .backends.base import Backend
from .errors import UsageError


class _Default:
    backend: Backend | None = None


_DEFAULT = _Default()


def set_default_backend(backend: Backend | None) -> None:
    """Use `backend` for programs that name none; None takes it back."""
    _DEFAULT.backend = backend


def resolve_backend(backend: Backend | None) -> Backend:
    """`backend`, or the default one.

    Raises:
        UsageError: there is none, or it is no backend.
    """
    chosen = _DEFAULT.backend if backend is None else backend
    if chosen is None:
        raise UsageError(
            "There is no backend: call ramet.set_default_backend(ramet.Runtime(model)), or pass "
            "backend= to run."
        )
    if not hasattr(chosen, "generate") or not hasattr(chosen, "frames"):
        raise UsageError(f"{type(chosen).__name__} is no backend.")
    return chosen
