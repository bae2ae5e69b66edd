"""A model in a Hugging Face folder: config.json, a tokenizer, and weights in safetensors.

Pickled weights are refused. It loads nothing until asked, and one tensor at a time then.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .base import StoredTensor, TokenizerFiles
from .hf_tokenizer import read_tokenizer, read_tokenizer_config
from .json_files import read_json, read_json_if_there
from .safetensors_files import find_weights

if TYPE_CHECKING:
    import torch

CONFIG = "config.json"


class HfDirectory:
    """A `ModelSource` over one folder.

    Args:
        path: the folder.
        name: what the model is called; by default the folder's name.

    Raises:
        ConfigError: it is not a folder with a config.json.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        if not (path / CONFIG).is_file():
            raise ConfigError(f"{path} is not a model folder: it has no {CONFIG}.")
        self.path = path
        self._name = path.resolve().name if name is None else name

    @property
    def name(self) -> str:
        """A short name for messages and for /v1/models."""
        return self._name

    def config(self) -> dict[str, Any]:
        """The content of config.json.

        Raises:
            ConfigError: it is not valid JSON, or no object.
        """
        return read_json(self.path / CONFIG)

    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a generation: of generation_config.json, else config.json, else the tokenizer.

        Raises:
            ConfigError: what stands there is no id and no list of ids.
        """
        for file in ("generation_config.json", CONFIG):
            value = read_json_if_there(self.path / file).get("eos_token_id")
            if value is not None:
                return _ids(value, self.path / file)
        token = read_tokenizer_config(self.path).get("eos_token")
        index = None if token is None else self.tokenizer().fast.token_to_id(token)
        return () if index is None else (index,)

    def stored(self) -> dict[str, StoredTensor]:
        """The shape of every tensor, from the headers alone.

        Raises:
            ConfigError: a weight file is missing, pickled, damaged or cut short; names it.
        """
        files = find_weights(self.path)
        return {name: StoredTensor(shape) for file in files for name, shape in file.shapes.items()}

    def tensors(self, *, quantized: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor, one at a time, as stored; the memory is mapped from the file.

        None of them is quantized, whatever is asked.

        Raises:
            ConfigError: as `stored`, before the first tensor is yielded.
        """
        from safetensors import safe_open

        for file in find_weights(self.path):
            with safe_open(str(file.path), framework="pt") as opened:
                for name in file.shapes:
                    yield name, opened.get_tensor(name)

    def tokenizer(self) -> TokenizerFiles:
        """The tokenizer.

        Raises:
            ConfigError: there is none, or it cannot be read; names the file.
        """
        return read_tokenizer(self.path)


def _ids(value: object, file: Path) -> tuple[int, ...]:
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(index, int) and not isinstance(index, bool) for index in ids):
        raise ConfigError(f"{file}: eos_token_id is {value!r}, neither an id nor a list of ids.")
    return tuple(ids)
