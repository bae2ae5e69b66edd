"""Short names, hub ids, and names that are almost right."""

from __future__ import annotations

import pytest

from ramet.runtime.config import DEFAULT_MODEL
from ramet.runtime.errors import ModelNotFound
from ramet.runtime.sources.catalog import CATALOG, find_entry, near_names
from ramet.runtime.sources.model_name import ModelName, parse_name


def test_default_model_can_be_had_without_the_hub() -> None:
    entry = find_entry(DEFAULT_MODEL)
    assert entry is not None and entry.fallback is not None
    assert len(entry.fallback.wheel_sha256) == len(entry.fallback.member_sha256) == 64


def test_names_are_unique_and_lower_case() -> None:
    names = [entry.name for entry in CATALOG]
    repos = [entry.repo_id for entry in CATALOG]
    assert len(set(names)) == len(names) and len(set(repos)) == len(repos)
    assert all(name == name.lower() and "/" not in name for name in names)


def test_entry_is_found_by_name_or_hub_id_in_any_case() -> None:
    entry = find_entry("Qwen3-0.6B")
    assert entry is not None and entry.name == "qwen3-0.6b"
    assert find_entry("qwen/QWEN3-0.6b") is entry
    assert find_entry("qwen3-0.6") is None


def test_near_names_are_similar_or_contain_what_was_typed() -> None:
    names = ["qwen3-0.6b", "gemma-3-1b-it", "acme/Special"]
    assert near_names("qwen3-06b", names) == ["qwen3-0.6b"]
    assert near_names("special", names) == ["acme/Special"]
    assert near_names("zzzz", names) == []


def test_two_spellings_of_a_catalog_model_are_one() -> None:
    assert parse_name("qwen3-0.6b") == parse_name("Qwen/Qwen3-0.6B")
    assert parse_name("qwen3-0.6b").key == "qwen3-0.6b"


def test_hub_ids_are_read() -> None:
    assert parse_name("acme/m-1.5") == ModelName("acme/m-1.5", "acme/m-1.5")
    assert parse_name("acme/m:sub/a.Q4_0.gguf") == ModelName(
        "acme/m:sub/a.Q4_0.gguf", "acme/m", file="sub/a.Q4_0.gguf"
    )


@pytest.mark.parametrize(
    "name",
    [
        "",
        "nothing-like-it",
        "a/b/c",
        "../etc",
        "a/..",
        "a/b:../../x.gguf",
        "a/b:/x.gguf",
        "a/b:x.bin",
        "a--b/c",
        "a/b\n",
        "acme/mödel",
    ],
)
def test_anything_else_is_no_name(name: str) -> None:
    with pytest.raises(ModelNotFound, match="no known name and no hub id"):
        parse_name(name)


def test_error_lists_names_like_it() -> None:
    with pytest.raises(ModelNotFound, match="Did you mean smollm2-135m-instruct"):
        parse_name("smolm2-135m-instruct")
