"""`ramet pull`, `list`, `rm` and `plan` over a store that holds one tiny model."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from ramet.commands.obtain import shown_progress
from ramet.commands.terminal import format_bytes
from ramet.runtime.sources.progress import Progress
from ramet.runtime.sources.store import ModelStore

if TYPE_CHECKING:
    from .conftest import Ramet


def put_model(cache_dir: Path, name: str = "owner/tiny") -> None:
    """A model in the store, as a pull leaves it."""
    store = ModelStore(cache_dir)
    with store.lock(name):
        (store.staging(name) / "config.json").write_text("{}")
        store.commit(name, files=["config.json"], origin="hub:owner/tiny@abc", entry=None)


def test_list_shows_what_is_here_and_what_is_known(ramet: Ramet, cache_dir: Path) -> None:
    put_model(cache_dir)
    shown = ramet("list")
    assert shown.code == 0
    assert "owner/tiny" in shown.out
    assert "smollm2-135m-instruct (default)" in shown.out


def test_list_of_an_empty_store_says_so(ramet: Ramet) -> None:
    assert "There is no model in" in ramet("list").err


def test_rm_deletes_and_then_does_not_find_it(ramet: Ramet, cache_dir: Path) -> None:
    put_model(cache_dir)
    assert ramet("rm", "owner/tiny").out.startswith("removed owner/tiny (")
    assert ModelStore(cache_dir).find("owner/tiny") is None
    gone = ramet("rm", "owner/tiny")
    assert gone.code == 1
    assert "There is no model 'owner/tiny' here." in gone.err


def test_pull_of_what_is_here_prints_its_path(ramet: Ramet, cache_dir: Path) -> None:
    put_model(cache_dir)
    shown = ramet("pull", "owner/tiny")
    assert shown.code == 0
    assert Path(shown.out.strip()).is_relative_to(cache_dir)


def test_pull_of_an_unknown_name_is_an_error(ramet: Ramet) -> None:
    shown = ramet("pull", "smollm2-135m-instruc")
    assert shown.code == 1
    assert "Did you mean smollm2-135m-instruct" in shown.err


def test_plan_of_a_model_that_is_not_here_says_how_to_get_it(ramet: Ramet) -> None:
    shown = ramet("plan")
    assert shown.code == 1
    assert "hint: Run `ramet pull smollm2-135m-instruct`." in shown.err


@pytest.mark.real_model
def test_plan_of_the_real_model(ramet: Ramet, smollm2_path: Path) -> None:
    flags = ("--kv-cache-memory", "1GiB", "--dtype", "bfloat16")
    shown = ramet("plan", str(smollm2_path), *flags, "--json")
    assert shown.code == 0, shown.err
    plan = json.loads(shown.out)
    # 30 layers, keys and values, 3 heads of 64, two bytes each.
    assert plan["kv_bytes_per_token"] == 30 * 2 * 3 * 64 * 2
    assert plan["max_model_len"] == 8192
    assert plan["num_tokens"] == 1024**3 // (plan["kv_bytes_per_token"] * 16) * 16
    assert plan["num_max_len_requests"] == 5
    table = ramet("plan", str(smollm2_path), *flags)
    assert "22.5 KiB as bfloat16" in table.out
    assert "8,192 tokens" in table.out


@pytest.mark.real_model
def test_plan_of_the_real_model_in_few_bits(ramet: Ramet, smollm2_path: Path) -> None:
    flags = ("plan", str(smollm2_path), "--kv-cache-memory", "1GiB", "--dtype", "bfloat16")
    norms, vocab, hidden = 61 * 576 * 4, 49152, 576
    layers = 30 * (576 * (576 + 2 * 192 + 576) + 3 * 576 * 1536)
    for quantization, num_bytes in (
        (None, 2 * (vocab * hidden + layers)),
        # The file's own: tables of 8.5 bits, products of 5; int8 has no use for more.
        ("int8", (vocab * hidden * 17 + layers * 10) // 16),
        ("int4", (vocab * hidden * 17 + layers * 10) // 16),
    ):
        more = () if quantization is None else ("--quantization", quantization)
        shown = ramet(*flags, *more, "--json")
        assert shown.code == 0, shown.err
        plan = json.loads(shown.out)
        assert (plan["dtype"], plan["quantization"]) == ("bfloat16", quantization)
        assert plan["weight_bytes"] == num_bytes + norms
        assert f"as {quantization or 'bfloat16'}" in ramet(*flags, *more).out


@pytest.mark.real_model
def test_plan_of_the_real_model_with_a_small_kv_cache(ramet: Ramet, smollm2_path: Path) -> None:
    flags = ("plan", str(smollm2_path), "--kv-cache-memory", "1GiB", "--kv-cache-dtype", "int8")
    shown = ramet(*flags, "--json")
    assert shown.code == 0, shown.err
    plan = json.loads(shown.out)
    # A float32 scale beside the 64 values of a head.
    assert plan["kv_bytes_per_token"] == 30 * 2 * 3 * (64 + 4)
    assert plan["kv_cache_dtype"] == "int8"
    assert plan["num_blocks"] == 1024**3 // (plan["kv_bytes_per_token"] * 16)
    assert "12.0 KiB as int8" in ramet(*flags).out
    refused = ramet(*flags[:-1], "fp8")
    assert refused.code == 1
    assert "kv_cache_dtype must be one of auto, bfloat16, float32, int8, not 'fp8'" in refused.err


@pytest.mark.real_model
def test_plan_that_does_not_fit_names_the_longest_that_would(
    ramet: Ramet, smollm2_path: Path
) -> None:
    flags = ("plan", str(smollm2_path), "--kv-cache-memory", "64MiB")
    shown = ramet(*flags)
    assert shown.code == 1
    assert "--max-model-len" in shown.err
    shrunk = ramet(*flags, "--max-model-len", "auto", "--json")
    assert shrunk.code == 0, shrunk.err
    assert 0 < json.loads(shrunk.out)["max_model_len"] < 8192


def test_progress_without_a_terminal_is_one_line_per_activity() -> None:
    out = io.StringIO()
    with shown_progress(Console(file=out)) as report:
        report(Progress("Downloading [x]", 1, 10))
        report(Progress("Downloading [x]", 9, 10))
        report(Progress("Unpacking"))
    assert out.getvalue() == "Downloading [x]\nUnpacking\n"


def test_progress_in_a_terminal_shows_a_bar() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120)
    with shown_progress(console) as report:
        report(Progress("Looking for it"))
        report(Progress("Downloading", 2**20, 2**21))
    assert "Downloading" in out.getvalue()


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**30, "1.0 GiB"), (2**42, "4.0 TiB")],
)
def test_sizes_for_people(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text
