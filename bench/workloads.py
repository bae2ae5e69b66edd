"""What is sent, in which order, how much at once: the workloads of the serving benchmark.

Numbers only: `runner` draws the text and sends it.

    independent     prompts that share nothing; closed loop or Poisson arrivals
    shared-prefix   prompts that share a long head, as agents with one system prompt do
    conversations   several multi-turn chats over one shared head
    fork            one prompt, many samples
    tree            a tree of thoughts: every answer branches again
"""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("independent", "shared-prefix", "conversations", "fork", "tree")


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be above 0, not {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload by numbers. Fields that a kind does not use are left at their defaults.

    Attributes:
        kind: one of `KINDS`.
        num_requests: requests, or conversations.
        prompt_len: tokens of a request's own text: the prompt, the question, the turn, the branch.
        shared_len: tokens of the head that all requests share.
        output_len: tokens to generate per sample.
        num_turns: turns of a conversation.
        branching, depth: children per node, and levels, of the tree.
        num_samples: samples of the fork.
        separate_samples: send each sample as a request of its own, for servers without `n`.
        temperature: 0 is greedy.
        concurrency: most requests in flight; None for no limit.
        request_rate: mean arrivals per second (Poisson); None sends as fast as concurrency allows.
    """

    kind: str
    num_requests: int = 1
    prompt_len: int = 256
    shared_len: int = 0
    output_len: int = 64
    num_turns: int = 1
    branching: int = 4
    depth: int = 3
    num_samples: int = 1
    separate_samples: bool = False
    temperature: float = 0.0
    concurrency: int | None = None
    request_rate: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        for name in ("num_requests", "prompt_len", "output_len", "num_turns", "num_samples"):
            _positive(name, getattr(self, name))
        for name in ("branching", "depth"):
            _positive(name, getattr(self, name))
        for name in ("concurrency", "request_rate"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        if self.shared_len < 0:
            raise ValueError(f"shared_len must be at least 0, not {self.shared_len}")
        if self.request_rate is not None and self.kind not in ("independent", "shared-prefix"):
            raise ValueError(f"a request rate does not apply to {self.kind}")


PRESETS = {
    "w1": Workload(kind="independent", prompt_len=32, output_len=256, concurrency=1),
    "w2": Workload(
        kind="independent", num_requests=32, prompt_len=64, output_len=128, concurrency=32
    ),
    "w3": Workload(kind="independent", prompt_len=2000, output_len=1, concurrency=1),
    "w4": Workload(
        kind="shared-prefix",
        num_requests=64,
        shared_len=1500,
        prompt_len=46,
        output_len=32,
        concurrency=16,
    ),
    "w5": Workload(
        kind="conversations",
        num_requests=8,
        num_turns=6,
        shared_len=800,
        prompt_len=36,
        output_len=48,
    ),
    "w6": Workload(kind="fork", prompt_len=1000, num_samples=16, output_len=64, temperature=0.8),
    "w7": Workload(
        kind="tree",
        shared_len=600,
        prompt_len=19,
        output_len=32,
        branching=4,
        depth=3,
        concurrency=32,
    ),
}
"""Small workloads, one strength of a server each: decode of one stream (w1) and of 32 (w2), prefill
(w3), a shared system prompt (w4), multi-turn chats (w5), samples (w6), a tree of thoughts (w7)."""


def num_expected(load: Workload) -> int:
    """Requests that the workload sends if none fails."""
    if load.kind == "conversations":
        return load.num_requests * load.num_turns
    if load.kind == "tree":
        return sum(load.branching**level for level in range(1, load.depth + 1))
    if load.kind == "fork" and load.separate_samples:
        return load.num_requests * load.num_samples
    return load.num_requests
