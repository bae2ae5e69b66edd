"""What can be added to a state. Frozen; `+` makes sequences, `str()` shows the tree.

Knows neither backends nor states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from .choices import ChoicesMethod
from .errors import UsageError
from .params import Params
from .tools import Tool

Addable = Union[str, "Node", None]


@dataclass(frozen=True, slots=True)
class Node:
    """Anything that can be added to a state."""

    def __add__(self, other: Addable) -> Node:
        return sequence([self, other])

    def __radd__(self, other: Addable) -> Node:
        return sequence([other, self])

    def lines(self, indent: str = "") -> list[str]:
        """The tree below this node, one line per node."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(self.lines())


@dataclass(frozen=True, slots=True)
class Text(Node):
    """Constant text."""

    text: str

    def lines(self, indent: str = "") -> list[str]:
        return [f"{indent}text {shortened(self.text)}"]


@dataclass(frozen=True, slots=True)
class Nodes(Node):
    """Nodes in order."""

    nodes: tuple[Node, ...]

    def lines(self, indent: str = "") -> list[str]:
        return [line for node in self.nodes for line in node.lines(indent)]


@dataclass(frozen=True, slots=True)
class Gen(Node):
    """The model writes.

    Attributes:
        name: the variable that gets what it writes; None for none.
        params: as given here; what is None comes from the run.
        convert: makes the variable's value from the text.
        tools: described to the model; calls found in the text are in the variable's meta data.
    """

    name: str | None
    params: Params
    convert: Callable[[str], Any] | None = None
    tools: tuple[Tool, ...] = ()

    def lines(self, indent: str = "") -> list[str]:
        told = ", ".join([*([repr(self.name)] if self.name else []), *self.params.shown()])
        return [f"{indent}gen({told})"]


@dataclass(frozen=True, slots=True)
class Select(Node):
    """The model chooses among options by their likelihood."""

    name: str | None
    options: tuple[str, ...]
    method: ChoicesMethod
    timeout: float | None = None
    priority: int | None = None

    def lines(self, indent: str = "") -> list[str]:
        options = " | ".join(shortened(option) for option in self.options)
        return [f"{indent}select({self.name!r}: {options}; {self.method.name})"]


@dataclass(frozen=True, slots=True)
class RoleBegin(Node):
    """A message of the role begins."""

    role: str

    def lines(self, indent: str = "") -> list[str]:
        return [f"{indent}{self.role}:"]


@dataclass(frozen=True, slots=True)
class RoleEnd(Node):
    """The message that is open ends; its role must be this one."""

    role: str

    def lines(self, indent: str = "") -> list[str]:
        return [f"{indent}end of {self.role}"]


@dataclass(frozen=True, slots=True)
class ToolLoop(Node):
    """The model answers, calling tools until it needs none."""

    name: str
    tools: tuple[Tool, ...]
    params: Params
    max_rounds: int

    def lines(self, indent: str = "") -> list[str]:
        names = ", ".join(tool.name for tool in self.tools)
        return [f"{indent}tool_loop({self.name!r}; {names}; at most {self.max_rounds} rounds)"]


@dataclass(frozen=True, slots=True)
class Tell(Node):
    """The model is told of tools, once per state."""

    tools: tuple[Tool, ...]

    def lines(self, indent: str = "") -> list[str]:
        return [f"{indent}tools: {', '.join(tool.name for tool in self.tools)}"]


@dataclass(frozen=True, slots=True)
class Retain(Node):
    """The state will wait: what is cached of it is to be evicted last, for so many seconds.

    None is for as long as the backend retains anything, 0 ends it.
    """

    seconds: float | None

    def lines(self, indent: str = "") -> list[str]:
        return [
            f"{indent}release()" if self.seconds == 0 else f"{indent}retain({self.seconds or ''})"
        ]


@dataclass(frozen=True, slots=True)
class ScopeBegin(Node):
    """From here on text is also collected for a variable."""

    name: str

    def lines(self, indent: str = "") -> list[str]:
        return [f"{indent}var_scope({self.name!r}):"]


@dataclass(frozen=True, slots=True)
class ScopeEnd(Node):
    """The variable gets the text that was added since its scope began."""

    name: str

    def lines(self, indent: str = "") -> list[str]:
        return [f"{indent}end of var_scope({self.name!r})"]


@dataclass(frozen=True, slots=True)
class SeparateReasoning(Node):
    """A `gen` whose thinking, `<think>…</think>`, goes to a variable of its own."""

    gen: Gen
    opening: str = "<think>"
    closing: str = "</think>"
    reasoning_name: str = field(default="")

    def lines(self, indent: str = "") -> list[str]:
        return [f"{indent}separate_reasoning:", *self.gen.lines(indent + "  ")]


# Nodes for which a backend has something to do; all others can wait for the next of these.
WORK = (Gen, Select, ToolLoop, SeparateReasoning, Retain)


def sequence(items: Sequence[Addable]) -> Node:
    """The items one after the other; None and "" are nothing.

    Raises:
        UsageError: an item cannot be added to a state.
    """
    nodes: list[Node] = []
    for item in items:
        node = as_node(item)
        nodes += node.nodes if isinstance(node, Nodes) else [node]
    return nodes[0] if len(nodes) == 1 else Nodes(tuple(nodes))


def as_node(item: object) -> Node:
    """`item` as a node.

    Raises:
        UsageError: it cannot be added to a state.
    """
    if isinstance(item, Node):
        return item
    if item is None or item == "":
        return Nodes(())
    if isinstance(item, str):
        return Text(item)
    raise UsageError(
        f"{type(item).__name__} cannot be added to a state; add text, or what gen, select and the "
        "roles return."
    )


def names_of(node: Node) -> list[str]:
    """Variables that the node will set, in order."""
    if isinstance(node, Nodes):
        return [name for part in node.nodes for name in names_of(part)]
    if isinstance(node, SeparateReasoning):
        return [node.reasoning_name, *names_of(node.gen)] if node.gen.name else []
    if isinstance(node, Gen | Select | ToolLoop | ScopeBegin):
        return [node.name] if node.name is not None else []
    return []


def shortened(text: str, limit: int = 60) -> str:
    """The text on one line, in quotes, with its middle left out if it is long."""
    if len(text) > limit:
        text = f"{text[: limit // 2]}…{text[-limit // 3 :]}"
    return repr(text)
