"""Reads the JSON files of a model folder, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import ConfigError


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ConfigError: the file cannot be read, is not JSON, or holds something else than an object.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no JSON object.")
    return content


def read_json_if_there(path: Path) -> dict[str, Any]:
    """As `read_json`, but an absent file is an empty object."""
    return read_json(path) if path.is_file() else {}
