"""Fields that other servers honour and this one cannot: refused by name, never ignored.

A row lists the values that ask for nothing, with which the field passes; null always does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidRequest

_NOTHING: tuple[Any, ...] = ()
_EMPTY: tuple[Any, ...] = ([], {}, "")

COMMON: Mapping[str, tuple[Any, ...]] = {
    "guided_whitespace_pattern": _NOTHING,
    "guided_decoding_backend": _NOTHING,
    "grammar": _EMPTY,
    "structural_tag": _NOTHING,
    "bad_words": _EMPTY,
    "allowed_token_ids": _NOTHING,
    "logprob_token_ids": _EMPTY,
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "lora_path": _EMPTY,
    "custom_logit_processor": _EMPTY,
    "custom_params": _EMPTY,
    "logits_processors": _EMPTY,
    "vllm_xargs": _EMPTY,
    "kv_transfer_params": _EMPTY,
    "return_hidden_states": (False,),
    "thinking_token_budget": _NOTHING,
    "session_params": _EMPTY,
    "best_of": _NOTHING,
    "prompt_embeds": _NOTHING,
    "input_embeds": _NOTHING,
    "watermark": (False,),
}

CHAT: Mapping[str, tuple[Any, ...]] = {
    **COMMON,
    "functions": ([],),
    "function_call": ("none", "auto"),
    "audio": _NOTHING,
    "modalities": (["text"], []),
    "web_search_options": _NOTHING,
    "moderation": _NOTHING,
    "chat_template": _NOTHING,
    "documents": _EMPTY,
    "input_ids": _NOTHING,
    "echo": (False,),
    "suffix": ("",),
}

COMPLETION: Mapping[str, tuple[Any, ...]] = {
    **COMMON,
    "suffix": ("",),
    "messages": _NOTHING,
}


def refuse(body: Mapping[str, Any], refused: Mapping[str, tuple[Any, ...]]) -> None:
    """Pass if `body` asks for none of the `refused` fields; `best_of` equal to `n` asks for nothing.

    Raises:
        InvalidRequest: it does; names all of them, the first one as `param`.
    """
    num_samples = body.get("n") or 1
    asked = [
        name
        for name in sorted(refused.keys() & body.keys())
        if not _is_inert(body[name], refused[name])
        and not (name == "best_of" and body[name] == num_samples)
    ]
    if asked:
        names = ", ".join(asked)
        verb = "is" if len(asked) == 1 else "are"
        raise InvalidRequest(f"{names} {verb} not supported by this server.", param=asked[0])


def _is_inert(value: Any, inert: tuple[Any, ...]) -> bool:
    # Compared with the type, since 0 == False and 1 == True.
    return value is None or any(value == item and type(value) is type(item) for item in inert)
