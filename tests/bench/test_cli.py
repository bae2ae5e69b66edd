"""`ramet bench serve` from flags to figures."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from ramet.bench.cli import app, choose_workloads, make_target
from ramet.bench.workloads import PRESETS

if TYPE_CHECKING:
    from .conftest import FakeServer


async def invoke(*flags: str) -> tuple[int, str]:
    """Run the command in a thread, so that the fake server can answer it."""
    result = await asyncio.to_thread(CliRunner().invoke, app, ["serve", *flags])
    return result.exit_code, result.output


async def test_measures_a_server_and_writes_json(server: FakeServer, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    code, output = await invoke(
        f"--url={server.url}", "--num-requests=4", "--prompt-len=9", "--output-len=3",
        "--runs=2", "--warmup=1", f"--json={out}",
    )  # fmt: skip
    assert code == 0, output
    assert "prompt tokens counted by the server" in output
    written = json.loads(out.read_text())
    assert written["model"] == "fake-model"
    figures = written["workloads"]["independent"]
    assert len(figures["runs"]) == 2
    assert figures["median"]["succeeded"] == 8
    assert figures["median"]["prompt_tokens"] == 36
    assert len(server.bodies) == 12, "the warm-up run is sent but not counted"


async def test_exits_with_1_and_names_the_errors_if_requests_fail(server: FakeServer) -> None:
    server.fail_every = 2
    code, output = await invoke(f"--url={server.url}", "--num-requests=4", "--runs=1", "--warmup=0")
    assert code == 1
    assert "2 x HTTP 503: too busy" in output


async def test_says_when_prompt_lengths_are_guessed(server_without_tokenize: FakeServer) -> None:
    url = server_without_tokenize.url
    code, output = await invoke(f"--url={url}", "--preset=w3", "--runs=1", "--warmup=0")
    assert code == 0, output
    assert "guess" in output


async def test_a_server_that_is_not_there_is_one_line(server: FakeServer) -> None:
    code, output = await invoke("--url=http://127.0.0.1:9")
    assert code == 1
    assert output.startswith("error: http://127.0.0.1:9/v1/models lists no model")


@pytest.mark.parametrize(
    "flags",
    [
        ["--preset=w9"],
        ["--dialect=klingon"],
        ["--endpoint=embeddings"],
        ["--extra-body=[]"],
        ["--extra-body={"],
        ["--kind=tree", "--request-rate=3"],
        ["--concurrency=0"],
        ["--nonsense"],
    ],
)
async def test_misuse_exits_with_2(flags: list[str]) -> None:
    code, output = await invoke("--url=http://127.0.0.1:9", *flags)
    assert code == 2, output


def test_without_aiohttp_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['aiohttp'] = None; from ramet.bench.cli import app; app(['serve'])"
    )
    run = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.startswith("error: ramet bench needs aiohttp")


def test_url_may_end_in_v1() -> None:
    assert make_target("http://x/v1/", "m", "chat", "openai", "{}").url == "http://x"


def test_flags_override_the_preset() -> None:
    loads = choose_workloads(["w4", "W2"], {"output_len": 7, "concurrency": None})
    assert loads["w4"].output_len == loads["w2"].output_len == 7
    assert loads["w4"].concurrency == PRESETS["w4"].concurrency
    assert list(choose_workloads(["all"], {})) == list(PRESETS)


def test_extra_fields_must_be_an_object() -> None:
    with pytest.raises(ValueError, match="JSON object"):
        make_target("http://x", "m", "chat", "openai", "3")
