"""What a program would do: its body run with placeholders in place of arguments and answers.

A branch that depends on an answer goes whichever way the placeholder's text takes it. Where a body
cannot go on without a real value the trace ends, and says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from . import nodes
from .content import Content, Opened
from .errors import UsageError
from .joining import JoinMode, check_not_joined, mark_joined

MAX_NODES = 10_000


class Placeholder(str):
    """Stands for a value that is not known yet; formats as its name."""

    __slots__ = ()


@dataclass
class Trace:
    """The tree of a program; `str()` shows it."""

    name: str
    root: TraceExecutor
    end: str | None = None

    def __str__(self) -> str:
        lines = [f"{self.name}:", *self.root.lines("  ")]
        return "\n".join([*lines, *([f"  ends here: {self.end}"] if self.end else [])])


@dataclass
class _Branches:
    states: list[TraceExecutor]
    joined: list[JoinMode] = field(default_factory=list)


@dataclass
class _Called:
    """Another program that the body runs."""

    name: str
    root: TraceExecutor


@dataclass
class TraceSession:
    """The facts of a run that a state asks for."""

    frames: None = None
    is_async: bool = False
    is_over: bool = False
    failure: None = None
    num_nodes: int = 0


@dataclass(eq=False)
class TraceExecutor:
    """Takes what is added to a state and writes it down; see `Executor`."""

    session: TraceSession
    label: str = ""
    content: Content = field(default_factory=Content)
    values: dict[str, Future[Any]] = field(default_factory=dict)
    metas: dict[str, dict[str, Any]] = field(default_factory=dict)
    own_names: dict[str, None] = field(default_factory=dict)
    done: list[nodes.Node | _Branches | _Called] = field(default_factory=list)
    error: None = None
    observed: bool = False
    joined: bool = False
    appended: bool = False
    log: None = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """A body runs here; programs that it runs are written down in their place."""
        token = _TRACING.set(self)
        try:
            yield
        finally:
            _TRACING.reset(token)

    def call(self, name: str) -> TraceExecutor:
        """Write down that another program runs, which is traced in what this returns."""
        root = TraceExecutor(self.session)
        self.done.append(_Called(name, root))
        return root

    def enqueue(self, node: nodes.Node) -> bool:
        """Write a node down; there is never anything to start."""
        self.submit(node)
        return False

    def submit(self, node: nodes.Node) -> None:
        """Write a node down."""
        check_not_joined(self)
        for part in node.nodes if isinstance(node, nodes.Nodes) else (node,):
            self.session.num_nodes += 1
            if self.session.num_nodes > MAX_NODES:
                raise UsageError(f"The program adds more than {MAX_NODES} nodes.")
            self.done.append(part)
            for name in nodes.names_of(part):
                if name in self.own_names:
                    raise UsageError(f"The variable {name!r} exists in this state already.")
                self._set(name, part)
            if isinstance(part, nodes.Text):
                self.content.add(part.text)
            elif isinstance(part, nodes.RoleBegin):
                self.content.add(Opened(part.role))
            elif isinstance(part, nodes.RoleEnd):
                self.content.end(part.role)
            elif not isinstance(part, nodes.ScopeBegin | nodes.ScopeEnd):
                self.content.add("".join(f"{{{name}}}" for name in nodes.names_of(part)))

    def _set(self, name: str, node: nodes.Node) -> None:
        value: Any = Placeholder(f"{{{name}}}")
        if isinstance(node, nodes.Gen) and (node.params.n or 1) > 1:
            value = [value] * (node.params.n or 1)
        self._give(name, value)

    def _give(self, name: str, value: Any) -> None:
        self.own_names[name] = None
        self.values[name] = Future()
        self.values[name].set_result(value)

    def stop(self, reason: str) -> None:
        """Nothing runs here that could end."""

    def branch(self, size: int) -> list[TraceExecutor]:
        """Write a fork down."""
        check_not_joined(self)
        states = [
            TraceExecutor(self.session, f"branch {index}", self.content.fork(), dict(self.values))
            for index in range(size)
        ]
        self.done.append(_Branches(states))
        return states

    def join(self, children: Sequence[TraceExecutor], mode: JoinMode) -> None:
        """Write a join down."""
        check_not_joined(self)
        mark_joined(children, mode)
        for item in self.done:
            if isinstance(item, _Branches) and item.states == list(children):
                item.joined.append(mode)
        if mode == "gather_variable":
            for name in dict.fromkeys(n for child in children for n in child.own_names):
                if name not in self.values:
                    got = [c.values[name].result() for c in children if name in c.own_names]
                    self._give(name, got)

    def barrier(self, run: Callable[[], Awaitable[Any] | Any]) -> Future[Any]:
        """The result of `run`; nothing here ever waits."""
        result: Future[Any] = Future()
        value = run()
        if hasattr(value, "send"):
            try:
                value.send(None)
            except StopIteration as stop:
                value = stop.value
        result.set_result(value)
        return result

    def lines(self, indent: str) -> list[str]:
        """The tree below this state."""
        lines: list[str] = []
        for item in self.done:
            if isinstance(item, _Branches):
                lines += self._branch_lines(item, indent)
            elif isinstance(item, _Called):
                lines += [f"{indent}{item.name}:", *item.root.lines(f"{indent}  ")]
            elif isinstance(item, nodes.RoleEnd | nodes.ScopeEnd):
                indent = indent[:-2]
            else:
                lines += item.lines(indent)
                if isinstance(item, nodes.RoleBegin | nodes.ScopeBegin):
                    indent += "  "
        return lines

    @staticmethod
    def _branch_lines(item: _Branches, indent: str) -> list[str]:
        lines = [f"{indent}fork({len(item.states)})"]
        for state in item.states:
            lines += [f"{indent}  {state.label}:", *state.lines(f"{indent}    ")]
        return [*lines, *(f"{indent}join({mode})" for mode in item.joined)]


_TRACING: ContextVar[TraceExecutor | None] = ContextVar("tracing", default=None)


def traced_here() -> TraceExecutor | None:
    """The state whose body is being traced on this thread, if one is."""
    return _TRACING.get()
