"""The store shows whole models only."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ramet.runtime.errors import ConfigError, ModelNotFound
from ramet.runtime.sources import store as store_module
from ramet.runtime.sources.store import ModelStore


def put(store: ModelStore, name: str, files: dict[str, str], entry: str | None = None) -> None:
    with store.lock(name):
        folder = store.staging(name)
        for file, text in files.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
        store.commit(name, files=list(files), origin="test:1", entry=entry)


def test_empty_store_has_nothing_and_makes_nothing(store: ModelStore) -> None:
    assert store.models() == []
    assert store.find("acme/a") is None
    assert not store.root.exists()


def test_committed_models_are_listed_by_name(store: ModelStore) -> None:
    put(store, "b", {"config.json": "{}", "model.safetensors": "12345"})
    put(store, "acme/a:sub/x.gguf", {"sub/x.gguf": "GGUF"}, entry="sub/x.gguf")
    assert [model.name for model in store.models()] == ["acme/a:sub/x.gguf", "b"]
    gguf, folder = store.models()
    assert gguf.path.read_text() == "GGUF" and gguf.origin == "test:1"
    assert (folder.path / "model.safetensors").read_text() == "12345"
    assert folder.num_bytes > 7
    assert store.find("b") == folder


def test_names_that_differ_only_in_their_separators_differ(store: ModelStore) -> None:
    put(store, "acme/a", {"config.json": "{}"})
    assert store.find("acme-a") is None and store.find("acme/a") is not None


def test_download_under_way_is_not_a_model(store: ModelStore) -> None:
    (store.staging("acme/a") / "config.json").write_text("{}")
    assert store.models() == [] and store.find("acme/a") is None
    # … and is still there for the next attempt.
    assert (store.staging("acme/a") / "config.json").read_text() == "{}"


def test_folder_without_manifest_is_not_a_model(store: ModelStore) -> None:
    (store.root / "models/acme--a").mkdir(parents=True)
    assert store.models() == [] and store.find("acme/a") is None


@pytest.mark.parametrize("fails", ["_flush", "_prune", "rename"])
def test_commit_that_is_broken_off_shows_nothing(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def broken(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if fails == "rename":
            patch.setattr(Path, "rename", broken)
        else:
            patch.setattr(store_module, fails, broken)
        with pytest.raises(KeyboardInterrupt):
            put(store, "acme/a", {"config.json": "{}"})
    assert store.models() == [] and store.find("acme/a") is None
    put(store, "acme/a", {"config.json": "{}"})
    assert store.find("acme/a") is not None


def test_commit_keeps_only_the_models_files(store: ModelStore) -> None:
    folder = store.staging("a")
    (folder / ".cache/deep").mkdir(parents=True)
    (folder / ".cache/deep/part.incomplete").write_text("x")
    (folder / "old.safetensors").write_text("x")
    (folder / "config.json").write_text("{}")
    model = store.commit("a", files=["config.json"], origin="test:1", entry=None)
    assert sorted(path.name for path in model.path.rglob("*")) == ["config.json", "ramet.json"]


def test_everything_is_flushed_before_the_rename(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    rename, flush = Path.rename, store_module._flush

    def noted_flush(path: Path) -> None:
        events.append(path.name)
        flush(path)

    def noted_rename(source: Path, target: Path) -> Path:
        events.append("rename")
        return rename(source, target)

    monkeypatch.setattr(store_module, "_flush", noted_flush)
    monkeypatch.setattr(Path, "rename", noted_rename)
    put(store, "a", {"config.json": "{}", "model.safetensors": "x"})
    assert set(events[: events.index("rename")]) == {
        "config.json",
        "model.safetensors",
        "ramet.json",
        "a",
    }
    assert events[events.index("rename") + 1 :] == ["models"]


def test_removed_model_is_gone_with_what_was_left_of_downloads(store: ModelStore) -> None:
    put(store, "a", {"config.json": "{}"})
    (store.staging("a") / "part").write_text("x")
    assert store.remove("a").name == "a"
    assert store.models() == []
    assert list((store.root / "staging").iterdir()) == []


def test_removing_an_unknown_model_lists_names_like_it(store: ModelStore) -> None:
    put(store, "acme/special", {"config.json": "{}"})
    with pytest.raises(
        ModelNotFound, match="no model 'acme/specal' here. Did you mean acme/special"
    ):
        store.remove("acme/specal")


def test_removal_that_is_broken_off_leaves_no_half_model(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "a", {"config.json": "{}", "model.safetensors": "x"})
    rmtree, calls = shutil.rmtree, []

    def broken(path: Path, **options: Any) -> None:
        calls.append(path)
        if len(calls) == 2:
            (path / "config.json").unlink()
            raise KeyboardInterrupt
        rmtree(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", broken)
        with pytest.raises(KeyboardInterrupt):
            store.remove("a")
    assert store.find("a") is None


def test_lock_lets_one_in_at_a_time(store: ModelStore) -> None:
    order: list[str] = []
    waiting = threading.Event()

    def second() -> None:
        with store.lock("a", on_wait=waiting.set):
            order.append("second")

    with store.lock("a"):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_locks_of_different_models_are_independent(store: ModelStore) -> None:
    waits: list[str] = []
    with store.lock("a"), store.lock("b", on_wait=lambda: waits.append("b")):
        assert waits == []


HOLD_LOCK = """
import pathlib, sys, time
from ramet.runtime.sources.store import ModelStore
with ModelStore(pathlib.Path(sys.argv[1])).lock("a"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_lock_of_a_process_that_is_killed_is_free(store: ModelStore) -> None:
    command = [sys.executable, "-c", HOLD_LOCK, str(store.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        process.kill()
        process.wait(10)
    waits: list[bool] = []
    with store.lock("a", on_wait=lambda: waits.append(True)):
        assert waits == []


def test_too_little_room_is_told_with_both_sizes(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = (0, 0, 3 * 2**29)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": usage[2]}))
    store.require_space(3 * 2**29)
    with pytest.raises(ConfigError, match=r"2\.00 GiB are needed and 1\.50 GiB are free"):
        store.require_space(2**31)


def test_disk_that_fills_up_is_told_with_sizes(store: ModelStore) -> None:
    store.root.mkdir()
    with pytest.raises(ConfigError, match=r"is full: 4\.00 GiB are needed and .* are free now"):
        with store.disk_errors(2**32):
            raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(PermissionError), store.disk_errors(1):
        raise PermissionError(errno.EACCES, "no")
