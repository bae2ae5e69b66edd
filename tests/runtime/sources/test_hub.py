"""What the hub's library raises, told in our own errors; nothing leaves the machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub import errors
from huggingface_hub.utils.tqdm import are_progress_bars_disabled

from ramet.runtime.errors import ConfigError, ModelNotFound
from ramet.runtime.sources.hub import HubUnreachable, HuggingFaceHub


def http_error(kind: type[errors.HfHubHTTPError], status: int) -> errors.HfHubHTTPError:
    response: Any = httpx.Response(status, request=httpx.Request("GET", "http://hub.invalid"))
    return kind(f"HTTP {status}", response=response)


CASES = [
    (http_error(errors.GatedRepoError, 403), ConfigError, "granted by its owner.*licence"),
    (http_error(errors.RepositoryNotFoundError, 401), ModelNotFound, "no model 'acme/m'"),
    (http_error(errors.RevisionNotFoundError, 404), ModelNotFound, "no model 'acme/m'"),
    (http_error(errors.HfHubHTTPError, 403), ConfigError, r"refused access.*HTTP 403"),
    (http_error(errors.HfHubHTTPError, 503), HubUnreachable, "HTTP 503"),
    (http_error(errors.HfHubHTTPError, 429), HubUnreachable, "HTTP 429"),
    (errors.OfflineModeIsEnabled("offline\nmode"), HubUnreachable, "^offline$"),
    (errors.LocalEntryNotFoundError("lost it"), HubUnreachable, "lost it"),
    (ConnectionResetError("reset"), HubUnreachable, "reset"),
]


@pytest.mark.parametrize(
    ("error", "kind", "words"), CASES, ids=[f"{type(e).__name__}-{k.__name__}" for e, k, _ in CASES]
)
def test_errors_are_translated(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: Exception,
    kind: type[Exception],
    words: str,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(kind, match=words):
        HuggingFaceHub().listing("acme/m", None)
    with pytest.raises(kind, match=words):
        HuggingFaceHub().fetch("acme/m", "c", "config.json", tmp_path)


def test_port_that_nobody_listens_on_is_unreachable_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = huggingface_hub.HfApi(endpoint="http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: api)
    with pytest.raises(HubUnreachable):
        HuggingFaceHub().listing("acme/m", None)


def test_full_disk_is_not_taken_for_a_broken_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(OSError, match="No space left"):
        HuggingFaceHub().fetch("acme/m", "c", "config.json", tmp_path)


def test_listing_has_commit_and_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def model_info(self: Any, repo_id: str, **options: Any) -> Any:
        asked.update(options, repo_id=repo_id)
        files = [SimpleNamespace(rfilename="a", size=3), SimpleNamespace(rfilename="b", size=None)]
        return SimpleNamespace(sha="abc", siblings=files)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    listing = HuggingFaceHub().listing("acme/m", "main")
    assert (listing.commit, listing.files) == ("abc", {"a": 3, "b": 0})
    assert asked["revision"] == "main" and asked["timeout"] <= 5


def test_fetch_pins_the_commit_and_shows_no_bars(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {}

    def download(repo_id: str, file: str, **options: Any) -> None:
        asked.update(options, repo_id=repo_id, file=file, hidden=are_progress_bars_disabled())

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    before = are_progress_bars_disabled()
    HuggingFaceHub().fetch("acme/m", "abc", "config.json", tmp_path)
    assert (asked["repo_id"], asked["file"], asked["revision"]) == ("acme/m", "config.json", "abc")
    assert asked["local_dir"] == tmp_path and asked["hidden"]
    assert are_progress_bars_disabled() == before
