"""`ramet bench`: the benchmarks that need a server, as commands.

It reads flags and prints figures; what is sent is in `workloads`, how in `runner` and `client`.
"""

from __future__ import annotations

import asyncio
import json
import platform
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from .programs.command import programs
from .protocol import DIALECTS, ENDPOINTS, ServerError, Target
from .text import TextSource, TokenCounter, approximate_count
from .workloads import KINDS, PRESETS, Workload, num_expected

app = typer.Typer(help="Measure servers.", no_args_is_help=True)
app.command()(programs)

_WORKLOAD = "Workload (each overrides the preset)"
_SERVER = "Server"
_RUNS = "Runs"


@app.callback()
def _bench() -> None:
    """Measure servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that one call of `ramet bench serve` does.

    Attributes:
        loads: name -> workload, run one after the other.
        target: the server; an empty model name takes the first that the server lists.
        runs, warmup: measured and unmeasured runs of each workload.
        seed: equal seeds send equal text.
        timeout: seconds per request.
        tokenizer: a tokenizer.json to count tokens with; None asks the server.
    """

    loads: dict[str, Workload]
    target: Target
    api_key: str | None = None
    runs: int = 3
    warmup: int = 1
    seed: int = 0
    timeout: float = 600.0
    tokenizer: Path | None = None


@app.command()
def serve(
    url: Annotated[
        str, typer.Option(help="The server's root, without /v1.", rich_help_panel=_SERVER)
    ] = "http://127.0.0.1:8000",
    model: Annotated[
        str, typer.Option(help="Default: the first that the server lists.", rich_help_panel=_SERVER)
    ] = "",
    api_key: Annotated[str | None, typer.Option(rich_help_panel=_SERVER)] = None,
    endpoint: Annotated[
        str, typer.Option(help=" or ".join(ENDPOINTS) + ".", rich_help_panel=_SERVER)
    ] = "completions",
    dialect: Annotated[
        str,
        typer.Option(
            help="How the server is told to generate exactly the tokens asked for: "
            + ", ".join(DIALECTS)
            + ".",
            rich_help_panel=_SERVER,
        ),
    ] = "ramet",
    extra_body: Annotated[
        str, typer.Option(help="JSON object added to every request.", rich_help_panel=_SERVER)
    ] = "{}",
    preset: Annotated[
        list[str],
        typer.Option(help=", ".join(PRESETS) + ", or all; repeatable.", rich_help_panel=_WORKLOAD),
    ] = [],  # noqa: B006 (typer copies it)
    kind: Annotated[
        str | None, typer.Option(help=", ".join(KINDS) + ".", rich_help_panel=_WORKLOAD)
    ] = None,
    num_requests: Annotated[
        int | None, typer.Option(help="Requests, or conversations.", rich_help_panel=_WORKLOAD)
    ] = None,
    prompt_len: Annotated[
        int | None, typer.Option(help="Tokens of a request's own text.", rich_help_panel=_WORKLOAD)
    ] = None,
    shared_len: Annotated[
        int | None,
        typer.Option(
            help="Tokens that all requests share at their head.", rich_help_panel=_WORKLOAD
        ),
    ] = None,
    output_len: Annotated[
        int | None, typer.Option(help="Tokens to generate.", rich_help_panel=_WORKLOAD)
    ] = None,
    num_turns: Annotated[
        int | None, typer.Option(help="Turns of a conversation.", rich_help_panel=_WORKLOAD)
    ] = None,
    branching: Annotated[
        int | None, typer.Option(help="Children per node of a tree.", rich_help_panel=_WORKLOAD)
    ] = None,
    depth: Annotated[
        int | None, typer.Option(help="Levels of a tree.", rich_help_panel=_WORKLOAD)
    ] = None,
    num_samples: Annotated[
        int | None, typer.Option(help="Samples of a fork.", rich_help_panel=_WORKLOAD)
    ] = None,
    separate_samples: Annotated[
        bool | None,
        typer.Option(
            "--separate-samples",
            help="Send samples as requests of their own (for servers without n).",
            rich_help_panel=_WORKLOAD,
        ),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="0 is greedy.", rich_help_panel=_WORKLOAD)
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Most requests in flight.", rich_help_panel=_WORKLOAD)
    ] = None,
    request_rate: Annotated[
        float | None,
        typer.Option(
            help="Mean arrivals per second, Poisson; inf sends at once.", rich_help_panel=_WORKLOAD
        ),
    ] = None,
    runs: Annotated[
        int, typer.Option(min=1, help="Measured runs; medians are shown.", rich_help_panel=_RUNS)
    ] = 3,
    warmup: Annotated[
        int, typer.Option(min=0, help="Runs before, not measured.", rich_help_panel=_RUNS)
    ] = 1,
    seed: Annotated[
        int,
        typer.Option(
            help="Equal seeds send equal text; a server that saw a seed before has it cached.",
            rich_help_panel=_RUNS,
        ),
    ] = 0,
    timeout: Annotated[
        float, typer.Option(help="Seconds per request.", rich_help_panel=_RUNS)
    ] = 600.0,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="tokenizer.json to count tokens with; default: the server's /tokenize.",
            rich_help_panel=_RUNS,
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Also write everything here.", rich_help_panel=_RUNS),
    ] = None,
) -> None:
    """Measure any OpenAI-compatible server: latencies, throughput and cache hit rate.

    Every run draws text of its own, new to the server. The exit code is 1 if a request failed.
    """
    changes = {
        "kind": kind,
        "num_requests": num_requests,
        "prompt_len": prompt_len,
        "shared_len": shared_len,
        "output_len": output_len,
        "num_turns": num_turns,
        "branching": branching,
        "depth": depth,
        "num_samples": num_samples,
        "separate_samples": separate_samples or None,
        "temperature": temperature,
        "concurrency": concurrency,
        "request_rate": None if request_rate == float("inf") else request_rate,
    }
    try:
        plan = Plan(
            loads=choose_workloads(preset, changes),
            target=make_target(url, model, endpoint, dialect, extra_body),
            api_key=api_key,
            runs=runs,
            warmup=warmup,
            seed=seed,
            timeout=timeout,
            tokenizer=tokenizer,
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    outcome = _measure(plan)
    if json_file is not None:
        json_file.write_text(json.dumps(outcome, indent=1) + "\n")
    if any(load["median"]["failed"] for load in outcome["workloads"].values()):
        raise typer.Exit(1)


def choose_workloads(presets: list[str], changes: dict[str, Any]) -> dict[str, Workload]:
    """The presets, or a workload of its own, with what the flags say about them.

    Raises:
        ValueError: an unknown preset, or numbers that make no workload.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    names = list(PRESETS) if "all" in presets else [name.lower() for name in presets]
    unknown = [name for name in names if name not in PRESETS]
    if unknown:
        raise ValueError(f"unknown preset {unknown[0]!r}; there are {', '.join(PRESETS)} and all")
    if names:
        return {name: replace(PRESETS[name], **given) for name in names}
    load = Workload(**{"kind": "independent", "num_requests": 32, "concurrency": 8, **given})
    return {load.kind: load}


def make_target(url: str, model: str, endpoint: str, dialect: str, extra_body: str) -> Target:
    """The server under test.

    Raises:
        ValueError: an unknown endpoint or dialect, or extra fields that are no JSON object.
    """
    if endpoint not in ENDPOINTS:
        raise ValueError(f"endpoint must be one of {', '.join(ENDPOINTS)}, not {endpoint!r}")
    if dialect not in DIALECTS:
        raise ValueError(f"dialect must be one of {', '.join(DIALECTS)}, not {dialect!r}")
    extra = json.loads(extra_body)
    if not isinstance(extra, dict):
        raise ValueError("extra-body must be a JSON object")
    root = url.rstrip("/").removesuffix("/v1")
    return Target(url=root, model=model, endpoint=endpoint, dialect=dialect, extra_body=extra)


def _measure(plan: Plan) -> dict[str, Any]:
    """Run the plan, printing as it goes; a server that does not answer ends the command."""
    try:
        return asyncio.run(measure(plan, Console()))
    except ModuleNotFoundError as error:
        if error.name != "aiohttp":
            raise
        reason = "ramet bench needs aiohttp: pip install aiohttp (or ramet with its extra `bench`)"
    except (ServerError, ValueError) as error:
        reason = str(error)
    typer.echo(f"error: {reason}", err=True)
    raise typer.Exit(1)


async def measure(plan: Plan, console: Console) -> dict[str, Any]:
    """Run every workload of the plan and return its figures.

    Raises:
        ServerError: the server cannot be reached, or lists no model.
        ValueError: no text with the asked number of tokens can be made.
    """
    from .client import Client, first_model, open_session, server_token_counter
    from .report import median_of, summarize, table
    from .runner import Run

    async with open_session(plan.api_key) as session:
        model = plan.target.model or await first_model(session, plan.target.url)
        target = replace(plan.target, model=model)
        count, counted_by = await _token_counter(
            plan.tokenizer, lambda: server_token_counter(session, target)
        )
        console.print(f"{target.url}, model {target.model}, prompt tokens counted by {counted_by}")
        client = Client(session, target, timeout=plan.timeout)
        text = TextSource(count)
        outcome = _facts(plan, target, counted_by)
        for name, load in plan.loads.items():
            runs = []
            for index in range(-plan.warmup, plan.runs):
                results, wall = await Run(load, client, text, f"{plan.seed}:{index}").measure()
                if index >= 0:
                    runs.append(summarize(results, wall, num_expected(load)))
            median = median_of(runs)
            outcome["workloads"][name] = {"workload": asdict(load), "median": median, "runs": runs}
            console.print(table(f"{name} ({load.kind}), median of {plan.runs}", median))
            for reason, times in median["errors"].items():
                console.print(f"{times} x {reason}", style="red", markup=False)
    return outcome


async def _token_counter(
    tokenizer: Path | None, ask_server: Callable[[], Awaitable[TokenCounter | None]]
) -> tuple[TokenCounter, str]:
    """How tokens are counted, and that in words."""
    if tokenizer is not None:
        from tokenizers import Tokenizer

        fast = Tokenizer.from_file(str(tokenizer))

        async def count(text: str) -> int:
            return len(fast.encode(text, add_special_tokens=False).ids)

        return count, str(tokenizer)
    from_server = await ask_server()
    if from_server is not None:
        return from_server, "the server"
    return approximate_count, "guess, one per four characters"


def _facts(plan: Plan, target: Target, counted_by: str) -> dict[str, Any]:
    return {
        "url": target.url,
        "model": target.model,
        "endpoint": target.endpoint,
        "dialect": target.dialect,
        "extra_body": dict(target.extra_body),
        "prompt_tokens_counted_by": counted_by,
        "seed": plan.seed,
        "warmup": plan.warmup,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "client": f"python {platform.python_version()}, {platform.platform()}",
        "workloads": {},
    }
