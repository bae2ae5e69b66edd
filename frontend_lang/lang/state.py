"""What a program holds: `State` to add to and to read from, and `StateGroup` for the branches of a fork.

Adding returns at once. Reading waits for what it needs: `s["x"]` in a plain program, `await s.get("x")`
in an async one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from . import nodes
from .errors import ProgramCancelled, ProgramError, UnknownVariable, UsageError
from .executor import Executor
from .joining import JoinMode
from .report import tree_html, tree_text
from .stream import Said
from .waiting import settled, wait

Lazy = nodes.Addable | Callable[["State"], Any]


class State:
    """A state of a program: its text, its messages, its variables.

    Attributes:
        ret_value: what the program's function returned, once it has run.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.ret_value: Any = None

    # Adding

    def __iadd__(self, other: Lazy) -> State:
        if callable(other) and not isinstance(other, nodes.Node):
            other(self)
        else:
            node = nodes.as_node(other)
            if node != nodes.Nodes(()):
                self._executor.submit(node)
        return self

    @contextmanager
    def _role(self, role: str) -> Iterator[None]:
        self._executor.submit(nodes.RoleBegin(role))
        try:
            yield
        finally:
            self._end(nodes.RoleEnd(role))

    def _end(self, node: nodes.Node) -> None:
        try:
            self._executor.submit(node)
        except ProgramCancelled:
            pass  # A cancelled program takes nothing more, and what cancelled it is on its way up.

    def _message(self, role: str, content: nodes.Addable) -> Any:
        if content is None:
            return self._role(role)
        self += nodes.sequence([nodes.RoleBegin(role), content, nodes.RoleEnd(role)])
        return None

    def system(self, content: nodes.Addable = None) -> Any:
        """Add a system message, or open one as a `with` block if there is no content."""
        return self._message("system", content)

    def user(self, content: nodes.Addable = None) -> Any:
        """Add a user message, or open one as a `with` block if there is no content."""
        return self._message("user", content)

    def assistant(self, content: nodes.Addable = None) -> Any:
        """Add an assistant message, or open one as a `with` block if there is no content."""
        return self._message("assistant", content)

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """Collect what is said in the block, without chat frames, in a variable."""
        self._executor.submit(nodes.ScopeBegin(name))
        try:
            yield
        finally:
            self._end(nodes.ScopeEnd(name))

    def set_var(self, name: str, value: Any) -> None:
        """Set a variable; one that exists is replaced."""
        self._executor.own_names[name] = None
        done: Future[Any] = Future()
        done.set_result(value)
        self._executor.values[name] = done

    __setitem__ = set_var

    # Branching

    def fork(self, size: int = 1, position_ids_offset: None = None) -> StateGroup:
        """Branches that start from this state as it is now. They share all that was computed.

        Raises:
            UsageError: size is below 1, or positions are to be shifted, which no backend does.
        """
        if position_ids_offset is not None:
            raise UsageError("position_ids_offset is not supported: positions follow the tokens.")
        if size < 1:
            raise UsageError(f"A fork has at least 1 branch, not {size}.")
        return StateGroup([State(e) for e in self._executor.branch(size)], self)

    @contextmanager
    def copy(self, position_ids_offset: None = None) -> Iterator[State]:
        """One branch for a block; joined at its end, so its new variables become lists of one."""
        group = self.fork(1, position_ids_offset)
        yield group[0]
        group.join()

    def cancel(self, reason: str = "The state was cancelled.") -> None:
        """End this state and its branches; other states of the program go on.

        What it waits for ends at once, at the backend too. Reading what it had not finished raises
        ProgramCancelled, and so does joining it. Safe to call twice.
        """
        self._executor.stop(reason)

    def retain(self, seconds: float | None = None) -> None:
        """Say that the state will wait, for a user or a tool of the program's own.

        The backend then evicts last what it has cached of it, for so many seconds and within a budget;
        until `release`, the end of the program, or the next `retain`.

        Args:
            seconds: None for as long as the backend retains anything.

        Raises:
            UsageError: seconds is not above 0.
            Unsupported: the backend retains nothing.
        """
        if seconds is not None and not seconds > 0:
            raise UsageError(f"A state is retained for more than 0 seconds, not {seconds}.")
        self._executor.submit(nodes.Retain(seconds))

    def release(self) -> None:
        """End what `retain` began."""
        self._executor.submit(nodes.Retain(0))

    # Reading

    def __getitem__(self, name: str) -> Any:
        if name not in self._executor.values:
            self.sync()
        self._wait(self._variable(name))
        return self._result(self._variable(name), f"variable {name!r}")

    def get_var(self, name: str) -> Any:
        """The variable, as `s[name]`."""
        return self[name]

    async def get(self, name: str) -> Any:
        """The variable; waits for it.

        Raises:
            UnknownVariable: nothing that was added sets it.
            ProgramError: what should have set it failed.
        """
        if name not in self._executor.values:
            await self.async_sync()
        future = self._variable(name)
        await settled(future)
        return self._result(future, f"variable {name!r}")

    def _variable(self, name: str) -> Future[Any]:
        try:
            return self._executor.values[name]
        except KeyError:
            known = ", ".join(map(repr, self._executor.values)) or "none"
            raise UnknownVariable(
                f"There is no variable {name!r} in this state; there are: {known}."
            ) from None

    def __contains__(self, name: str) -> bool:
        return name in self._executor.values

    @property
    def variables(self) -> dict[str, Any]:
        """Every variable by its name; waits for all."""
        return {name: self[name] for name in list(self._executor.values)}

    @property
    def stream_executor(self) -> State:
        """The state itself, which has what SGLang's programs look for under this name."""
        return self

    def get_meta_info(self, name: str) -> dict[str, Any]:
        """How the variable came about: tokens, cached tokens, finish reason, log-probabilities, scores."""
        self[name]
        return self._executor.metas.get(name, {})

    meta = get_meta_info

    async def get_meta(self, name: str) -> dict[str, Any]:
        """`meta` for async programs."""
        await self.get(name)
        return self._executor.metas.get(name, {})

    def text(self) -> str:
        """Everything so far, with the chat template's frames."""
        return str(self._now(self._text()))

    async def async_text(self) -> str:
        """`text` for async programs."""
        return str(await self._later(self._text()))

    def messages(self) -> list[dict[str, str]]:
        """The conversation so far, as OpenAI's API has it."""
        return list(self._now(self._messages()))

    async def async_messages(self) -> list[dict[str, str]]:
        """`messages` for async programs."""
        return list(await self._later(self._messages()))

    def sync(self) -> None:
        """Wait until everything that was added is done."""
        self._now(self._barrier(lambda: None))

    async def async_sync(self) -> None:
        """`sync` for async programs."""
        await self._later(self._barrier(lambda: None))

    def error(self) -> BaseException | None:
        """Why the state failed, or None; does not wait."""
        return self._executor.error

    def _text(self) -> Future[Any]:
        async def text() -> str:
            content = self._executor.content
            resolved = await content.resolve(self._executor.session.frames)
            return content.text + resolved.text

        return self._barrier(text)

    def _messages(self) -> Future[Any]:
        return self._barrier(
            lambda: [
                {"role": message.role, "content": message.content}
                for message in self._executor.content.messages
            ]
        )

    def _barrier(self, run: Callable[[], Awaitable[Any] | Any]) -> Future[Any]:
        return self._executor.barrier(run)

    def _now(self, future: Future[Any]) -> Any:
        self._wait(future)
        return self._result(future, "this state")

    async def _later(self, future: Future[Any]) -> Any:
        await settled(future)
        return self._result(future, "this state")

    def _wait(self, future: Future[Any]) -> None:
        session = self._executor.session
        if session.is_async and not session.is_over and not future.done():
            raise UsageError("An async program must await what it reads: await s.get(name).")
        wait(future)

    def _result(self, future: Future[Any], what: str) -> Any:
        error = future.exception()
        if error is None:
            return future.result()
        self._executor.observed = True
        raise self.failure(error, what) from error

    def failure(self, error: BaseException, what: str) -> ProgramError:
        """The error to raise for `error`, with this state attached."""
        if isinstance(error, ProgramCancelled):
            return ProgramCancelled(str(error), self)
        return ProgramError(f"{what} failed: {type(error).__name__}: {error}", self)

    # Following

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """Text as it grows: of the state, or of one variable. All at once without `stream=True`.

        Raises:
            UnknownVariable: the program ended, and there is no such variable.
            ProgramError: the program failed.
        """
        log = self._executor.log
        if log is None:
            yield self.text() if var_name is None else self[var_name]
            return
        index = 0
        while True:
            piece = log.read(index)
            if isinstance(piece, Future):
                wait(piece)
                continue
            if piece is None or self._ends(piece, var_name):
                self._check_followed(var_name)
                return
            index += 1
            if piece.text is not None and var_name in (None, piece.name):
                yield piece.text

    async def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """`text_iter` for async readers.

        Args:
            return_meta_data: give pairs of text and facts: of the tokens of this text, if the `gen` asked
                for their log-probabilities; what `meta` has by now otherwise.
        """
        log = self._executor.log
        if log is None:
            text = await (self.async_text() if var_name is None else self.get(var_name))
            whole = self._executor.metas.get(var_name or "", {})
            yield (text, whole) if return_meta_data else text
            return
        index = 0
        while True:
            piece = log.read(index)
            if isinstance(piece, Future):
                await settled(piece)
                continue
            if piece is None or self._ends(piece, var_name):
                self._check_followed(var_name)
                return
            index += 1
            if piece.text is not None and var_name in (None, piece.name):
                facts = piece.facts or self._executor.metas.get(piece.name or "", {})
                yield (piece.text, facts) if return_meta_data else piece.text

    def _ends(self, piece: Said, var_name: str | None) -> bool:
        return var_name is not None and piece.name == var_name and piece.text is None

    def _check_followed(self, var_name: str | None) -> None:
        executor = self._executor
        future = executor.values.get(var_name) if var_name is not None else None
        if future is not None and future.done() and future.exception() is None:
            return
        failed = executor.session.failure
        if failed is not None:
            raise failed
        if executor.error is not None:
            raise self.failure(executor.error, "the program") from executor.error
        if var_name is not None and future is None:
            self._variable(var_name)

    # Showing

    def tree(self) -> str:
        """What was done so far, as a tree with tokens, cached tokens and time."""
        return tree_text(self._executor)

    def to_html(self) -> str:
        """`tree` as HTML."""
        return tree_html(self._executor)

    _repr_html_ = to_html

    def __repr__(self) -> str:
        names = ", ".join(self._executor.values)
        return f"State({self._executor.label or 'root'}; {names})"


class StateGroup:
    """The branches of one fork."""

    def __init__(self, states: Sequence[State], source: State) -> None:
        self.states = list(states)
        self._source = source

    def __getitem__(self, index: int) -> State:
        return self.states[index]

    def __setitem__(self, index: int, state: State) -> None:
        # `forks[i] += x` assigns what `+=` returned, which is the same state.
        if state is not self.states[index]:
            raise UsageError("A branch cannot be replaced.")

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[State]:
        return iter(self.states)

    def __iadd__(self, other: Any) -> StateGroup:
        """Add to every branch: the same, or one item of a list each, or what a function of the index
        returns."""
        if isinstance(other, list | tuple):
            if len(other) != len(self.states):
                raise UsageError(f"{len(other)} items for {len(self.states)} branches.")
            items = list(other)
        elif callable(other) and not isinstance(other, nodes.Node):
            items = [other(index) for index in range(len(self.states))]
        else:
            items = [other] * len(self.states)
        if any(callable(item) and not isinstance(item, nodes.Node) for item in items):
            for state, item in zip(self.states, items, strict=True):
                state += item
            return self
        added = [nodes.as_node(item) for item in items]
        due = [
            state._executor
            for state, node in zip(self.states, added, strict=True)
            if state._executor.enqueue(node)
        ]
        if due:
            self._source._executor.session.wake(due)
        return self

    def join(self, mode: JoinMode = "gather_variable") -> None:
        """End the branches, and take them into the state they came from.

        Args:
            mode: `gather_variable` gives the state, for each variable that is new in a branch, the list
                of its values, in the branches' order; a name that the state has already keeps its value.
                `concate_and_append` appends what the branches said, one after the other.

        Raises:
            UsageError: there is no such mode.
        """
        if mode not in ("gather_variable", "concate_and_append"):
            raise UsageError(f"There is no way to join called {mode!r}.")
        self._source._executor.join([state._executor for state in self.states], mode)

    def __enter__(self) -> StateGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.join()
