"""Typed reading of a config.json: every wrong value is an error that names its key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError


class HfKeys:
    """The values of a config.json. A null reads as absent.

    Args:
        values: the parsed file; held, not copied.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values

    def count(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """A whole number.

        Raises:
            ConfigError: it is absent and has no default, or is not a whole number of that size.
        """
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise ConfigError(f"config.json has no {key}.", param=key)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise ConfigError(
                f"{key} must be a whole number, at least {minimum}, not {value!r}.", param=key
            )
        return value

    def positive(self, key: str) -> float | None:
        """A number above 0, or None if it is absent.

        Raises:
            ConfigError: it is anything else.
        """
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise ConfigError(f"{key} must be a number above 0, not {value!r}.", param=key)
        return float(value)

    def flag(self, key: str) -> bool:
        """Whether it is true; absent is false.

        Raises:
            ConfigError: it is neither true nor false.
        """
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"{key} must be true or false, not {value!r}.", param=key)
        return bool(value)

    def items(self, key: str) -> tuple[Any, ...] | None:
        """The items of a list, or None if it is absent.

        Raises:
            ConfigError: it is not a list.
        """
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{key} must be a list, not {value!r}.", param=key)
        return tuple(value)

    def mapping(self, key: str) -> Mapping[str, Any]:
        """A mapping; absent is an empty one.

        Raises:
            ConfigError: it is anything else.
        """
        value = self.values.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key} must be a mapping, not {value!r}.", param=key)
        return value
