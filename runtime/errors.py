"""The errors that ramet raises on purpose, and nothing else.

    RametError
    ├── ConfigError            a flag, a model folder or a combination of both cannot work
    ├── RequestError           this request cannot be served; the sender has to change it
    │   ├── InvalidRequest         a field is missing, mistyped, out of range or unsupported
    │   │   └── GrammarError           what its output shall match is malformed or too complex
    │   ├── ContextLengthExceeded  prompt (and output) do not fit the model's context
    │   └── ModelNotFound          no such model is served or known
    ├── CapacityError          it cannot be served now; the same request may succeed later
    │   ├── OutOfBlocks            the KV cache has no free or evictable block left
    │   ├── QueueFull              as many requests wait as the server is willing to hold
    │   ├── DeadlineExceeded       the request's own time limit passed
    │   └── ServerDraining         the server is shutting down and takes no new work
    └── EngineError            the engine is at fault
        └── EngineDead             the engine process ended while the request ran

`retryable` says whether sending the same request again can help; `hint` says what to do about it.
The server maps these to HTTP in one table (runtime/server/errors.py).
"""

from __future__ import annotations


class RametError(Exception):
    """Base of every error that ramet raises on purpose.

    Args:
        message: what went wrong, with the name of the field and the limit where there is one.
        param: the request field or flag at fault.
        hint: what the reader can do about it; shown after the message.
    """

    retryable = False

    def __init__(self, message: str, *, param: str | None = None, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message} {hint}")
        self.message = message
        self.param = param
        self.hint = hint


class ConfigError(RametError):
    """A flag, a model folder, or a combination of both cannot work."""


class RequestError(RametError):
    """This request cannot be served; its sender has to change it."""


class InvalidRequest(RequestError):
    """A field of the request is missing, mistyped, out of range or not supported."""


class GrammarError(InvalidRequest):
    """What the output shall match is malformed, not supported, impossible or too complex."""


class ContextLengthExceeded(RequestError):
    """The prompt, or prompt and output together, do not fit the model's context."""

    def __init__(self, num_prompt_tokens: int, max_model_len: int, *, param: str | None) -> None:
        super().__init__(
            f"This model's maximum context length is {max_model_len} tokens. However, your request "
            f"has {num_prompt_tokens} input tokens. Please reduce the length of the messages.",
            param=param,
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.max_model_len = max_model_len


class ModelNotFound(RequestError):
    """No model of that name is served, or known to the catalog."""


class CapacityError(RametError):
    """It cannot be served now; the same request may succeed later."""

    retryable = True


class OutOfBlocks(CapacityError):
    """The KV cache has no free and no evictable block left."""


class QueueFull(CapacityError):
    """As many requests wait as the server is willing to hold."""


class DeadlineExceeded(CapacityError):
    """The request's own time limit passed before it finished."""


class ServerDraining(CapacityError):
    """The server is shutting down, or not ready yet, and takes no new work."""


class EngineError(RametError):
    """The engine is at fault; the request was a good one."""

    retryable = True


class EngineDead(EngineError):
    """The engine process ended while the request ran."""
