"""One state's work: what was added to it, done in order on the language's loop.

Adding costs an entry in a queue; a task exists only while there is something to wait for. The first
failure ends the state: what was added behind it fails with the same error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import asking, nodes
from .backends.base import Generated, GenRequest
from .content import Content, Opened
from .errors import ProgramCancelled, ProgramError, UsageError
from .joining import JoinMode, check_not_joined, mark_joined
from .report import Branches, Step
from .stream import Said, TextLog
from .telling import tell

if TYPE_CHECKING:
    from .session import Session


@dataclass(slots=True)
class Op:
    """Something to do.

    Attributes:
        run: does it; a returned awaitable is awaited.
        names: variables that it sets.
        result: gets what `run` returns, for whoever waits for it.
        always: it is done even if the state has failed.
    """

    run: Callable[[], Awaitable[Any] | Any]
    names: list[str] = field(default_factory=list)
    result: Future[Any] | None = None
    always: bool = False


class Executor:
    """Does what is added to one state.

    `submit`, `barrier` and `branch` belong to the program's side and may be called on any thread; all
    else happens on the loop.

    Attributes:
        label: where in the tree of states it is, "" for the root.
        values: name -> the variable, once it is there; a branch starts with those of its parent.
        metas: name -> facts about how the variable came about.
        own_names: variables that were declared here, not in the parent.
        fork_version: of the parent's content, when this branch began.
        num_forks: how often it was forked.
        error: why it failed, or None.
        observed: whether the program has been told of the error.
        joined: whether it was joined, in whichever way; it can only be read then.
        appended: whether what it said was appended to the parent.
        events: what it did, for reports.
        log: what it said, if somebody may read it while it runs.
        retained_as: the name under which the backend retains its prefix, if it does.
    """

    def __init__(self, session: Session, label: str, parent: Executor | None = None) -> None:
        self.session = session
        self.label = label
        self.content = Content()
        self.values: dict[str, Future[Any]] = {} if parent is None else dict(parent.values)
        self.metas: dict[str, dict[str, Any]] = {} if parent is None else dict(parent.metas)
        self.own_names: dict[str, None] = {}
        self.error: BaseException | None = None
        self.observed = False
        self.joined = False
        self.appended = False
        self.fork_version = -1
        self.num_forks = 0
        self.events: list[Step | Branches] = []
        self.log = TextLog() if session.streams else None
        self.retained_as: str | None = None
        self._speculation = session.speculation() if parent is None else None
        self._queue: deque[Op] = deque()
        self._task: asyncio.Task[None] | None = None
        self._started = parent is None
        self._on_start: list[asyncio.Future[None]] = []

    def submit(self, node: nodes.Node) -> None:
        """Add a node; work starts at once if there is any.

        Raises:
            UsageError: a name is taken, the program has ended, or the branch was joined.
            Unsupported: the backend cannot do it.
        """
        if self.enqueue(node):
            self.session.loop.call_soon_threadsafe(self.wake)

    def enqueue(self, node: nodes.Node) -> bool:
        """Add a node as `submit` does, but leave it to the caller to `wake` this; whether that is due."""
        self._check_open()
        parts = node.nodes if isinstance(node, nodes.Nodes) else (node,)
        for part in parts:
            self.session.check(part)
        for part in parts:
            names = nodes.names_of(part)
            self.declare(names)
            self._queue.append(Op(lambda part=part: self._run(part), names))  # type: ignore[misc]
        return any(isinstance(part, nodes.WORK) for part in parts)

    def declare(self, names: Sequence[str]) -> None:
        """Reserve variables.

        Raises:
            UsageError: one is taken in this state.
        """
        for name in names:
            if name in self.own_names:
                raise UsageError(
                    f"The variable {name!r} exists in this state already; a name is used once per state."
                )
            self.own_names[name] = None
            self.values[name] = Future()

    def barrier(self, run: Callable[[], Awaitable[Any] | Any]) -> Future[Any]:
        """Do `run` after everything that was added so far; returns its result to come."""
        result: Future[Any] = Future()
        self._queue.append(Op(run, result=result))
        self.session.loop.call_soon_threadsafe(self.wake)
        return result

    def branch(self, size: int) -> list[Executor]:
        """Fork: executors that start from what this one will be after everything added so far."""
        self._check_open()
        branches = Branches([])
        stem = f"{self.label}.fork{self.num_forks}".lstrip(".")
        self.num_forks += 1
        for index in range(size):
            label = f"{stem}[{index}]"
            branches.states.append(Executor(self.session, label, self))
        self.session.executors += branches.states

        def start() -> None:
            self.events.append(branches)
            for child in branches.states:
                child.start(self)

        self._queue.append(Op(start, always=True))
        self.session.loop.call_soon_threadsafe(self.wake)
        return branches.states

    def join(self, children: Sequence[Executor], mode: JoinMode) -> None:
        """Take in what the branches have become, after everything added so far, here and there.

        Raises:
            UsageError: they are to be appended, and were appended already.
        """
        self._check_open()
        mark_joined(children, mode)
        self._queue.append(Op(lambda: self._join(children, mode)))
        self.session.loop.call_soon_threadsafe(self.wake)

    def _check_open(self) -> None:
        self.session.check_open()
        check_not_joined(self)

    def start(self, parent: Executor) -> None:
        """Begin with the parent's content, or with its error."""
        self._started = True
        self.content = parent.content.fork()
        self.fork_version = parent.content.version
        self.metas = dict(parent.metas)
        if parent._speculation is not None:
            self._speculation = parent._speculation.fork()
        if parent.error is not None:
            self.fail(parent.error)
            self.observed = parent.observed and isinstance(parent.error, ProgramCancelled)
        for waiter in self._on_start:
            if not waiter.done():
                waiter.set_result(None)
        self._on_start.clear()
        self.wake()

    def wake(self) -> None:
        """Go on with what was added."""
        if self._queue and not self._busy and self._started:
            self._task = asyncio.ensure_future(self._drain())

    async def idle(self) -> None:
        """Wait until everything that was added is done."""
        if not self._started:
            started = asyncio.get_running_loop().create_future()
            self._on_start.append(started)
            await started
        while True:
            self.wake()
            if self._task is None or not self._busy:
                return
            await asyncio.wait({self._task})

    @property
    def _busy(self) -> bool:
        # Not cleared by the task itself: one that is cancelled before its first step never runs.
        return self._task is not None and not self._task.done()

    def cancel(self, error: BaseException) -> None:
        """End what runs, and fail it and everything added from now on with `error`."""
        if self._busy or self._queue or not self._started:
            self.fail(error)
        if self._task is not None:
            self._task.cancel()

    def stop(self, reason: str) -> None:
        """End this state and its branches, alone. Callable on any thread."""
        self.observed = True
        self.session.loop.call_soon_threadsafe(self._stop, ProgramCancelled(reason))

    def _stop(self, error: ProgramCancelled) -> None:
        self.fail(error)
        # Whoever stops a state knows that it failed, and that its branches did.
        self.observed = True
        if self._task is not None:
            self._task.cancel()
        for event in self.events:
            if isinstance(event, Branches):
                for child in event.states:
                    child._stop(error)
        self.release()
        self.wake()

    def release(self) -> None:
        """Let the backend evict what it retains of this state, if it does."""
        if self.retained_as is not None:
            self.session.backend.release(self.retained_as)
            self.retained_as = None

    def fail(self, error: BaseException) -> None:
        """Remember the first error."""
        if self.error is None:
            self.error = error

    async def _drain(self) -> None:
        while self._queue:
            await self._do(self._queue.popleft())

    async def _do(self, op: Op) -> None:
        try:
            if self.error is not None and not op.always:
                raise self.error
            value = op.run()
            if asyncio.iscoroutine(value):
                value = await value
        except asyncio.CancelledError:
            self.fail(ProgramCancelled("The program was cancelled."))
            self._refuse(op)
        except Exception as error:
            self.fail(error)
            self._refuse(op)
        else:
            if op.result is not None:
                op.result.set_result(value)

    def _refuse(self, op: Op) -> None:
        assert self.error is not None
        for future in [self.values[name] for name in op.names] + [op.result]:
            if future is not None and not future.done():
                future.set_exception(self.error)

    async def ask(self, request: GenRequest) -> Generated:
        """Let the backend generate, or what it has written ahead answer."""
        if self._speculation is not None:
            return await self._speculation.generate(self.session.backend, request)
        return await self.session.backend.generate(request)

    def set(self, name: str, value: Any, meta: dict[str, Any]) -> None:
        """Give a declared variable its value."""
        self.metas[name] = meta
        self.values[name].set_result(value)
        self.say(None, name)

    def say(
        self, text: str | None, name: str | None = None, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Show readers new text, with facts about its tokens; None for the end of a variable."""
        if self.log is not None and text != "":
            self.log.add(Said(text, name, facts or {}))

    async def flush(self) -> None:
        """Show readers what nothing has followed yet, and that this is the end."""
        if self.log is not None:
            if self.error is None:
                resolved = await self.content.resolve(self.session.frames)
                self.say(resolved.text[self.content.num_shown :])
            self.log.close()

    def _run(self, node: nodes.Node) -> Awaitable[None] | None:
        content = self.content
        if isinstance(node, nodes.Text):
            content.add(node.text)
        elif isinstance(node, nodes.Gen):
            return asking.run_gen(self, node)
        elif isinstance(node, nodes.RoleBegin):
            content.add(Opened(node.role))
        elif isinstance(node, nodes.RoleEnd):
            content.end(node.role)
        elif isinstance(node, nodes.Select):
            return asking.run_select(self, node)
        elif isinstance(node, nodes.ScopeBegin):
            content.scopes[node.name] = []
        elif isinstance(node, nodes.ScopeEnd):
            self.set(node.name, "".join(content.scopes.pop(node.name)), {})
        elif isinstance(node, nodes.Tell):
            return tell(self, node.tools)
        elif isinstance(node, nodes.ToolLoop):
            from .tool_loop import run_tool_loop

            return run_tool_loop(self, node)
        elif isinstance(node, nodes.Retain):
            return asking.retain(self, node.seconds)
        elif isinstance(node, nodes.SeparateReasoning):
            return asking.run_separate_reasoning(self, node)
        else:
            raise UsageError(f"{type(node).__name__} cannot be run.")
        return None

    async def _join(self, children: Sequence[Executor], mode: JoinMode) -> None:
        for child in children:
            await child.idle()
            child.release()
        for child in children:
            if child.error is not None:
                child.observed = True
                raise ProgramError(
                    f"Branch {child.label} failed: {type(child.error).__name__}: {child.error}"
                ) from child.error
        if mode == "gather_variable":
            gathered: dict[str, list[Any]] = {}
            for child in children:
                for name in child.own_names:
                    if name not in self.values:
                        gathered.setdefault(name, []).append(child.values[name].result())
            for name, values in gathered.items():
                self.own_names[name] = None
                facts = [child.metas.get(name, {}) for child in children if name in child.own_names]
                self.metas[name] = {"branches": facts}
                self.values[name] = Future()
                self.values[name].set_result(values)
            return
        for child in children:
            if child.content.open_role != self.content.open_role:
                raise UsageError(f"Branch {child.label} cannot be appended: its roles differ.")
            if self.content.version == child.fork_version:
                self.content.adopt(child.content)
            else:
                for item in child.content.own:
                    self.content.add(item)
