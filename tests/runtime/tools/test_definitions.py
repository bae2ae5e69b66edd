"""Definitions of tools: what is taken, and what models are told of them."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.runtime.errors import InvalidRequest
from ramet.runtime.tools.definitions import MAX_TOOLS, definitions, read_tools

NO_PARAMETERS = {"type": "object", "properties": {}}


def tool(name: str = "f", **members: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **members}}


def test_models_are_told_of_name_description_and_parameters() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    told = tool("f", description="F.", parameters=schema)
    given = {**told, "function": {**told["function"], "strict": True, "other": 1}, "more": 2}
    assert definitions(read_tools([given, tool("g")])) == [
        told,
        tool("g", parameters=NO_PARAMETERS),
    ]


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "search"}], "tools[0].type"),
        ([tool("two words")], "tools[0].function.name"),
        ([tool("f"), tool("f")], "tools[1].function.name"),
        ([tool(parameters={"type": "array"})], "tools[0].function.parameters.type"),
        ([tool(parameters={"properties": []})], "tools[0].function.parameters.properties"),
        ([tool(parameters={"required": [1]})], "tools[0].function.parameters.required"),
        ([tool(f"f{i}") for i in range(MAX_TOOLS + 1)], "tools"),
        ([{"type": "function", "function": {}}], "tools"),
        ([tool(description=1)], "tools"),
    ],
)
def test_what_is_malformed_is_refused_by_name(tools: list[dict[str, Any]], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        definitions(read_tools(tools))
    assert caught.value.param == param
