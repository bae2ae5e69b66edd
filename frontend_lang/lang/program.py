"""`@function`: a Python function over a state, and the ways to run it.

A body is a plain function or `async def`; its first argument is the state. Whoever calls it with a
state as the first argument runs it on that state, as a part of another program.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, overload

from .backends.base import Backend
from .batch import arun_batch, run_batch
from .defaults import resolve_backend
from .errors import ProgramError, UsageError
from .params import Params, make_params
from .prefix import common_content, compute
from .session import Session, running, running_here
from .state import State
from .trace import Placeholder, Trace, TraceExecutor, TraceSession, traced_here
from .waiting import LANGUAGE_LOOP, drive, settled, wait

DEFAULT_MAX_TOKENS = 128

# Keyword arguments of a run that are the parameters of its gens, unless the body has such an argument; and
# SGLang's use_thread, which means nothing here.
_PARAMS = {
    *("max_new_tokens", "max_tokens", "min_new_tokens", "min_tokens", "n", "stop"),
    *("stop_token_ids", "stop_regex", "temperature", "top_p", "top_k", "min_p"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty", "ignore_eos", "seed"),
    *("sampling_seed", "return_logprob", "logprob_start_len", "top_logprobs_num"),
    *("return_text_in_logprobs", "logprobs", "priority", "gen_timeout", "use_thread"),
}


class Function:
    """A program; see `function`.

    Attributes:
        func: the Python function that it was made of.
        num_api_spec_tokens: as given to `function`.
    """

    def __init__(
        self,
        body: Callable[..., Any],
        bound: dict[str, Any] | None = None,
        num_api_spec_tokens: int | None = None,
    ) -> None:
        functools.update_wrapper(self, body)
        self.func = self._body = body
        self.num_api_spec_tokens = num_api_spec_tokens
        self._bound = dict(bound or {})
        arguments = list(inspect.signature(body).parameters.values())
        if not arguments:
            raise UsageError(f"{body.__name__} must take the state as its first argument.")
        self._arguments = arguments[1:]
        self._names = {argument.name for argument in self._arguments}

    def bind(self, **arguments: Any) -> Function:
        """The program with some of its arguments fixed.

        Raises:
            UsageError: it has no such argument.
        """
        unknown = sorted(arguments.keys() - self._names)
        if unknown:
            raise UsageError(f"{self._body.__name__} has no argument {unknown[0]!r}.")
        return Function(self._body, {**self._bound, **arguments}, self.num_api_spec_tokens)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on the given state, as part of another program; or `run`, if there is none.

        Within the body of a plain program it returns as soon as this body has ended, and what it has
        asked for goes on beside the other program, which raises its failure unless somebody reads it.
        """
        if args and isinstance(args[0], State):
            return self._body(*args, **{**self._bound, **kwargs})
        outer = running_here() if traced_here() is None else None
        if outer is None or kwargs.get("stream") or inspect.iscoroutinefunction(self._body):
            return self.run(*args, **kwargs)
        return self._run_beside(outer, args, kwargs)

    def run(
        self,
        *args: Any,
        backend: Backend | None = None,
        stream: bool = False,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> State:
        """Run the program on this thread, to its end.

        Args:
            args, kwargs: of the body; and parameters of every gen that does not say otherwise, such as
                `temperature` or `max_new_tokens` (128). `gen_timeout` is the time limit of each.
            backend: where tokens come from; the default one otherwise.
            stream: return at once, for `text_iter`; the body then has a thread of its own.
            timeout: seconds until the program is cancelled.

        Raises:
            ProgramError: something that a state had to do failed; has the partial state.
            UsageError: the program or the call is written wrongly.
            Exception: whatever the body raises itself.
        """
        tracing = traced_here()
        if tracing is not None:
            return self._called(tracing, args, kwargs)
        session, kwargs = self._session(backend, kwargs, stream=stream, timeout=timeout)
        state = State(session.root)
        if stream:
            thread = threading.Thread(
                target=self._run_quietly, args=(session, state, args, kwargs), daemon=True
            )
            thread.start()
            return state
        self._run_here(session, state, args, kwargs)
        return state

    async def arun(
        self,
        *args: Any,
        backend: Backend | None = None,
        stream: bool = False,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> State:
        """`run` on the running event loop; cancelling it cancels the program's requests."""
        session, kwargs = self._session(backend, kwargs, stream=stream, timeout=timeout)
        state = State(session.root)
        if stream:
            session.task = asyncio.ensure_future(self._arun_quietly(session, state, args, kwargs))
            return state
        await self._arun(session, state, args, kwargs)
        return state

    @overload
    def run_batch(
        self,
        batch_kwargs: Sequence[Any],
        *,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: Literal[False] = False,
        errors: str = "raise",
        **options: Any,
    ) -> list[State]: ...

    @overload
    def run_batch(
        self,
        batch_kwargs: Sequence[Any],
        *,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: Literal[True],
        errors: str = "raise",
        **options: Any,
    ) -> Generator[State, None, None]: ...

    def run_batch(
        self,
        batch_kwargs: Sequence[Any],
        *,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        errors: str = "raise",
        **options: Any,
    ) -> list[State] | Generator[State, None, None]:
        """Run the program once per item, many at a time, on this thread.

        Args:
            batch_kwargs: per run a dictionary of arguments, or a list of their values.
            num_threads: how many run at once, under SGLang's name; "auto" is 256. No threads are made.
            progress_bar: show one on standard error.
            generator_style: return an iterator that yields states in order, as they are done.
            errors: "raise" ends the batch at the first failure; "return" leaves the failed states in the
                result, with their `error()`.
            options: for every run, as for `run`.

        Raises:
            ProgramError, Exception: as `run`.
            UsageError: an item does not fit the body's arguments.
        """
        calls = [self._batch_arguments(item) for item in batch_kwargs]
        return run_batch(
            lambda kwargs: self._batch_run({**options, **kwargs}, errors),
            calls,
            num_threads=num_threads,
            progress_bar=progress_bar,
            generator_style=generator_style,
        )

    async def arun_batch(
        self,
        batch_kwargs: Sequence[Any],
        *,
        concurrency: int = 256,
        errors: str = "raise",
        **options: Any,
    ) -> list[State]:
        """`run_batch` on the running event loop, `concurrency` runs at once."""
        calls = [self._batch_arguments(item) for item in batch_kwargs]
        return await arun_batch(
            lambda kwargs: self._batch_arun({**options, **kwargs}, errors), calls, concurrency
        )

    def trace(self, **arguments: Any) -> Trace:
        """What the program would do; arguments that are not given are shown by their names.

        Raises:
            UsageError: the body is async, or has no such argument.
            Exception: whatever the body raises before it has read an answer.
        """
        return self._trace(arguments, "{{{}}}")

    def cache(self, backend: Backend | None = None) -> int:
        """Let the backend compute what every run begins with; waits, and returns its tokens.

        Raises:
            UsageError: the program cannot be traced.
            Unsupported: the backend keeps no cache that could be filled.
            Exception: whatever the backend raises.
        """
        traces = [self._trace({}, mark + "{}") for mark in ("\x00", "\x01")]
        content = common_content(*traces)
        return LANGUAGE_LOOP.call(compute(content, resolve_backend(backend))).result()

    def _trace(self, arguments: dict[str, Any], placeholder: str) -> Trace:
        if inspect.iscoroutinefunction(self._body):
            raise UsageError("An async program cannot be traced: it awaits what is not there.")
        given = {**self._bound, **self.bind(**arguments)._bound}
        for argument in self._arguments:
            if argument.name not in given and argument.default is argument.empty:
                given[argument.name] = Placeholder(placeholder.format(argument.name))
        root = TraceExecutor(TraceSession())
        trace = Trace(self._body.__name__, root)
        try:
            with root.entered():
                self._body(State(root), **given)  # type: ignore[arg-type]  # what State needs of one
        except Exception as error:
            if isinstance(error, UsageError):
                raise
            trace.end = f"the body needs real values ({type(error).__name__}: {error})"
        return trace

    def _called(
        self, tracing: TraceExecutor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> State:
        """What this program would do, as a part of one that is being traced."""
        given = {n: v for n, v in kwargs.items() if n not in _PARAMS - self._names}
        root = tracing.call(self._body.__name__)
        state = State(root)  # type: ignore[arg-type]  # what State needs of one
        with root.entered():
            state.ret_value = self._body(state, *args, **{**self._bound, **given})
        return state

    def _session(
        self,
        backend: Backend | None,
        kwargs: dict[str, Any],
        *,
        stream: bool,
        timeout: float | None,
    ) -> tuple[Session, dict[str, Any]]:
        taken = {n: kwargs[n] for n in kwargs.keys() & (_PARAMS - self._names)}
        rest = {**self._bound, **{n: v for n, v in kwargs.items() if n not in taken}}
        taken.pop("use_thread", None)
        if "gen_timeout" in taken:
            taken["timeout"] = taken.pop("gen_timeout")
        defaults = make_params(**taken).over(Params(max_tokens=DEFAULT_MAX_TOKENS))
        session = Session(
            resolve_backend(backend),
            defaults,
            streams=stream,
            num_api_spec_tokens=self.num_api_spec_tokens,
        )
        if timeout is not None:
            session.limit(timeout)
        return session, rest

    def _run_beside(self, outer: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> State:
        backend, timeout = kwargs.pop("backend", None), kwargs.pop("timeout", None)
        session, kwargs = self._session(backend, kwargs, stream=False, timeout=timeout)
        outer.begin(session)
        state = State(session.root)
        try:
            with running(session):
                state.ret_value = self._body(state, *args, **kwargs)
        except BaseException as error:
            _abandon(session, state, error)
            session.observe()
            raise
        session.finish()
        return state

    def _run_here(
        self, session: Session, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Run on this thread, or in this greenlet."""
        if inspect.iscoroutinefunction(self._body):
            future = LANGUAGE_LOOP.call(self._arun(session, state, args, kwargs))
            try:
                wait(future)
            except BaseException:
                session.cancel()
                raise
            future.result()
            return
        try:
            with running(session):
                state.ret_value = self._body(state, *args, **kwargs)
            done = session.finish()
            wait(done)
            done.result()
            _raise_failure(session, state)
        except BaseException as error:
            done = _abandon(session, state, error)
            if isinstance(error, Exception):
                wait(done)
            raise

    async def _arun(
        self, session: Session, state: State, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if not inspect.iscoroutinefunction(self._body):
            await drive(lambda: self._run_here(session, state, args, kwargs))
            return
        session.is_async = True
        try:
            state.ret_value = await self._body(state, *args, **kwargs)
            done = session.finish()
            await settled(done)
            done.result()
            _raise_failure(session, state)
        except BaseException as error:
            done = _abandon(session, state, error)
            if isinstance(error, Exception):
                await settled(done)
            raise

    def _run_quietly(self, session: Session, state: State, args: Any, kwargs: Any) -> None:
        try:
            self._run_here(session, state, args, kwargs)
        except BaseException:
            # Not lost: `_abandon` kept it, and every reader of the state's text gets it.
            assert session.failure is not None

    async def _arun_quietly(self, session: Session, state: State, args: Any, kwargs: Any) -> None:
        try:
            await self._arun(session, state, args, kwargs)
        except Exception:
            assert session.failure is not None

    def _batch_arguments(self, item: Any) -> dict[str, Any]:
        if isinstance(item, dict):
            return item
        names = [a.name for a in self._arguments if a.name not in self._bound]
        if isinstance(item, list | tuple) and len(item) <= len(names):
            return dict(zip(names, item, strict=False))
        raise UsageError(f"An item of a batch must be a dictionary of arguments, not {item!r}.")

    def _batch_run(self, kwargs: dict[str, Any], errors: str) -> State:
        try:
            return self.run(**kwargs)
        except ProgramError as error:
            return _tolerated(error, errors)

    async def _batch_arun(self, kwargs: dict[str, Any], errors: str) -> State:
        try:
            return await self.arun(**kwargs)
        except ProgramError as error:
            return _tolerated(error, errors)


def _tolerated(error: ProgramError, errors: str) -> State:
    if errors == "return" and error.state is not None:
        return error.state
    if errors not in ("raise", "return"):
        raise UsageError(f'errors must be "raise" or "return", not {errors!r}.') from error
    raise error


def _raise_failure(session: Session, state: State) -> None:
    failed = session.failed()
    if failed is not None:
        assert failed.error is not None
        what = f"branch {failed.label}" if failed.label else "the program"
        if failed.session is not session:
            what += " that it has run" if what == "the program" else " of a program that it has run"
        raise State(failed).failure(failed.error, what) from failed.error


def _abandon(session: Session, state: State, error: BaseException) -> Any:
    """End what runs after the body, or the run, failed; the future is done when it has."""
    if isinstance(error, ProgramError):
        error.state = state
    session.failure = error
    if session.root.error is None:
        session.root.fail(error)
    session.cancel()
    return session.finish()


@overload
def function(body: Callable[..., Any], num_api_spec_tokens: int | None = None) -> Function: ...


@overload
def function(
    body: None = None, num_api_spec_tokens: int | None = None
) -> Callable[[Callable[..., Any]], Function]: ...


def function(
    body: Callable[..., Any] | None = None, num_api_spec_tokens: int | None = None
) -> Function | Callable[[Callable[..., Any]], Function]:
    """Make a program of a function whose first argument is the state.

    Args:
        num_api_spec_tokens: with a backend where text travels, ask for at least so many tokens at once,
            and take the text of later gens from them as long as the program's own text agrees; see
            speculation.py.

    Raises:
        UsageError: `num_api_spec_tokens` is below 1.
    """
    if num_api_spec_tokens is not None and num_api_spec_tokens < 1:
        raise UsageError(f"num_api_spec_tokens must be at least 1, not {num_api_spec_tokens}.")
    if body is None:
        return lambda given: Function(given, num_api_spec_tokens=num_api_spec_tokens)
    return Function(body, num_api_spec_tokens=num_api_spec_tokens)
