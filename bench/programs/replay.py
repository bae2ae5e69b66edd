"""How a model follows a recording: it writes as many tokens as the recorded turn has.

recorded    what it wrote is dropped, and the state goes on with the recorded text. Every server reads
            the same prompts. The recorded text is new to the server when the next call brings
            it; the call after that finds it in the cache.
generated   the state goes on with what the model wrote, so that the next call finds prompt and
            output in the cache. What the environment said stays the recorded text.
"""

from __future__ import annotations

import ramet

HISTORIES = ("recorded", "generated")


def say(s: ramet.State, name: str, text: str, num_tokens: int, history: str) -> None:
    """Let the model write `num_tokens` tokens where the recording says `text`.

    Args:
        name: of the variable that gets what it wrote.
        history: one of `HISTORIES`.
    """
    written = ramet.gen(name, max_tokens=num_tokens, ignore_eos=True)
    if history == "generated":
        s += written
        return
    with s.copy() as aside:
        aside += written
    s += text
