"""A real server: the `ramet` command with the real model, in processes of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest

START_TIMEOUT = 180.0


@dataclass
class Server:
    """A running `ramet serve`."""

    process: subprocess.Popen[str]
    url: str

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)

    def async_client(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=240
        )

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        text = httpx.get(f"{self.url}/metrics").text
        values = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        assert values, f"no metric {name} in:\n{text}"
        return sum(map(float, values))

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout: float = 60) -> int:
        """Send a signal and wait for the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout)


Start = Callable[..., Server]


def start_server(*arguments: str) -> Server:
    process = subprocess.Popen(
        [sys.executable, "-m", "ramet", "serve", *arguments, "--port", "0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    watchdog = threading.Timer(START_TIMEOUT, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            found = re.search(r"http://[\d.]+:\d+", line)
            if found:
                return Server(process, found[0])
    finally:
        watchdog.cancel()
    raise AssertionError(f"the server ended with code {process.wait()} before it was ready")


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Starts servers that end with the module."""
    servers: list[Server] = []

    def make(*arguments: str) -> Server:
        servers.append(start_server(*arguments))
        return servers[-1]

    yield make
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()
        if server.process.stdout is not None:
            server.process.stdout.close()


@pytest.fixture(scope="module")
def server(start: Start, smollm2: Path) -> Server:
    """One server for every test of the module that does not need its own."""
    return start(str(smollm2), "--kv-cache-memory", "1GiB", "--served-model-name", "smollm2")
