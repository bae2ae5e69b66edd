"""`ramet chat` against a server and with a model in this process; lines come from a pipe."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .conftest import Ramet


class Handler(BaseHTTPRequestHandler):
    """Repeats the last message, and tells whether it was sent with the key."""

    def do_GET(self) -> None:
        self._answer(json.dumps({"data": [{"id": "echo"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers.get("Authorization")
        text = f"{body['messages'][-1]['content']}|{body['max_tokens']}|{key}"
        event = {"choices": [{"index": 0, "delta": {"content": text}}]}
        self._answer(f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Be quiet."""

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def url() -> Iterator[str]:
    """A server that repeats what it is told."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_chat_with_a_server(ramet: Ramet, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
    shown = ramet("chat", "--url", url, "--api-key", "k", "--max-tokens", "5")
    assert shown.code == 0, shown.err
    assert shown.out == "one|5|Bearer k\ntwo|5|Bearer k\n"


def test_chat_with_a_server_that_is_not_there(ramet: Ramet) -> None:
    shown = ramet("chat", "--url", "http://127.0.0.1:9")
    assert shown.code == 1
    assert "does not answer" in shown.err


@pytest.mark.real_model
def test_chat_with_the_real_model_in_this_process(
    ramet: Ramet, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("What is the capital of France?\n"))
    shown = ramet("chat", str(smollm2_path), "--temperature", "0", "--max-tokens", "16")
    assert shown.code == 0, shown.err
    assert "Paris" in shown.out
