"""Fields that cannot be honoured are refused, unless their value asks for nothing."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.runtime.errors import InvalidRequest
from ramet.runtime.server.refusals import CHAT, COMPLETION, refuse


@pytest.mark.parametrize("refused", [CHAT, COMPLETION], ids=["chat", "completion"])
def test_every_refused_field_may_be_null_and_not_something(
    refused: dict[str, tuple[Any, ...]],
) -> None:
    for name, inert in refused.items():
        refuse({name: None}, refused)
        for value in inert:
            refuse({name: value}, refused)
        with pytest.raises(InvalidRequest) as caught:
            refuse({name: "something"}, refused)
        assert caught.value.param == name and name in str(caught.value)


def test_all_that_is_asked_for_is_named() -> None:
    with pytest.raises(InvalidRequest, match="function_call, functions are not supported"):
        refuse({"functions": [{}], "function_call": {"name": "f"}, "audio": None}, CHAT)


def test_a_value_that_only_equals_an_inert_one_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="use_beam_search"):
        refuse({"use_beam_search": 0}, COMMON_FIELDS)


COMMON_FIELDS = {"use_beam_search": (False,)}
