"""What every run of a program begins with, so that it can be computed ahead of the first.

Found by tracing the program twice with different placeholders: what both traces say is constant.
"""

from __future__ import annotations

import os

from . import nodes
from .backends.base import Backend, GenRequest
from .content import Content, Opened
from .errors import Unsupported
from .params import Params
from .trace import Trace


def common_content(first: Trace, second: Trace) -> Content:
    """What both traces say before a model is asked, or the program branches."""
    content = Content()
    for one, other in zip(first.root.done, second.root.done, strict=False):
        if isinstance(one, nodes.Text) and isinstance(other, nodes.Text) and one != other:
            content.add(os.path.commonprefix([one.text, other.text]))
        if one != other:
            break
        if isinstance(one, nodes.Text):
            content.add(one.text)
        elif isinstance(one, nodes.RoleBegin):
            content.add(Opened(one.role))
        elif isinstance(one, nodes.RoleEnd):
            content.end(one.role)
        elif not isinstance(one, nodes.ScopeBegin | nodes.ScopeEnd):
            break
    return content


async def compute(content: Content, backend: Backend) -> int:
    """Let the backend read the content; returns how many tokens that were.

    Raises:
        Unsupported: the backend gets text, and keeps no cache that could be filled.
    """
    if backend.frames is None:
        raise Unsupported(f"{type(backend).__name__} has no cache that a program could fill.")
    resolved = await content.resolve(backend.frames)
    if not resolved.text:
        return 0
    request = GenRequest(
        prompt=content.prompt(resolved), params=Params(max_tokens=0, temperature=0.0)
    )
    return (await backend.generate(request)).num_prompt_tokens
