"""The model as the HTTP side knows it: its name, its text, and the facts that its engine reports."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..engine.client import EngineClient
from ..errors import ModelNotFound
from ..text.chat_template import ChatTemplate
from ..text.tokenizer import Tokenizer
from ..tools.form import HERMES, Form


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model under one name.

    Attributes:
        name: what clients call it.
        tokenizer: its text.
        chat_template: renders conversations for it.
        tokenizer_config: content of its tokenizer_config.json, for clients that tokenize themselves.
        tool_form: how it writes that it calls a function.
        version: the server's version; part of the fingerprint.
        created: Unix time, seconds, that /v1/models tells.
    """

    name: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    tokenizer_config: Mapping[str, Any]
    version: str
    tool_form: Form = HERMES
    created: int = field(default_factory=lambda: int(time.time()))

    def check_name(self, name: str | None) -> None:
        """Pass if `name` is this model; None means the one that is served.

        Raises:
            ModelNotFound: it is another.
        """
        if name is not None and name != self.name:
            raise ModelNotFound(
                f"The model {name[:200]!r} does not exist. This server has {self.name!r}.",
                param="model",
            )

    def fingerprint(self, client: EngineClient) -> str:
        """A short word that changes with weights, precision, kernels and version."""
        info = client.info
        facts = (
            self.version,
            info.model_name,
            info.weight_bytes,
            info.dtype,
            info.quantization,
            info.kv_cache_dtype,
            info.device,
            info.kernels,
            info.max_model_len,
        )
        return "fp_" + hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
