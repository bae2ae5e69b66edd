"""What the answers of chat and of completions have in common, and nothing of what sets them apart."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from .generation import Delta, Job, Sample
from .intake import ServerContext
from .protocol import GenerationRequest

_encode = msgspec.json.encode


def answer_head(
    context: ServerContext, body: GenerationRequest, job: Job, *, prefix: str, kind: str
) -> dict[str, Any]:
    """The fields before `choices`.

    Args:
        prefix: of the answer's id.
        kind: OpenAI's name of the object.
    """
    head: dict[str, Any] = {
        "id": f"{prefix}-{body.request_id or body.rid or job.request_id}",
        "object": kind,
        "created": int(time.time()),
        "model": context.model.name,
        "system_fingerprint": context.model.fingerprint(context.client),
    }
    if body.service_tier is not None:
        head["service_tier"] = "default"
    return head


def choice_end(delta: Delta, sample: Sample, *, with_ids: bool) -> list[bytes]:
    """The end of a chunk's choice, in JSON from the comma before `finish_reason` to the brace."""
    if delta.finish_reason is None:
        parts = [b',"finish_reason":null']
    else:
        parts = [b',"finish_reason":', _encode(delta.finish_reason)]
        parts += (b',"stop_reason":', _encode(sample.stop_reason))
    if with_ids:
        parts += (b',"token_ids":', _encode(delta.token_ids))
    parts.append(b"}")
    return parts
