"""`Engine`: a model in this process, for programs that want completions and no server.

    with Engine("smollm2-135m-instruct") as engine:
        print(engine.generate("The capital of France is", temperature=0, max_tokens=8).text)

Owns the checks that a request passes before it is queued, and the sync and async faces of one thread
(thread.py). It knows nothing of scheduling.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, overload

from ..config import DEFAULT_MODEL, EngineConfig
from ..errors import InvalidRequest
from ..request import SamplingParams
from ..text.chat_template import ChatTemplate
from ..text.tokenizer import Tokenizer
from .arrivals import check_prompt, check_retention
from .completion import AsyncTextStream, Call, Completion, Item, TextStream
from .loop import Core
from .messages import EngineInfo, EngineStats, GenerateRequest, Release, Retain
from .options import ENVELOPE, configure, params_of_sample, sampling_params
from .thread import EngineThread

Prompt = str | list[int]
Prompts = list[str] | list[list[int]]
Messages = Sequence[Mapping[str, Any]]


class Engine:
    """A loaded model.

    Any number of threads and event loops may use it at once; their requests run together. Keyword
    arguments of the generating methods are the fields of `SamplingParams`, unless `params` is given.
    A prompt is text, encoded with the tokens that the model expects around a text, or token ids, which
    are taken as they are.

    Args:
        model: a folder, a GGUF file, a name or hub id (downloaded if it is not here yet), or a whole
            configuration.
        cache_dir: where downloaded models lie; None means `~/.cache/ramet`.
        options: fields of `ModelOptions`, `CacheConfig` and `SchedulerConfig`, over those of `model`.

    Raises:
        ConfigError: it cannot be loaded with these options.
        ModelNotFound: there is no such model.
        TypeError: there is no such option.
    """

    max_live: int | None
    """Most requests that may run or wait at once; None for any number."""

    def __init__(
        self,
        model: str | os.PathLike[str] | EngineConfig = DEFAULT_MODEL,
        *,
        cache_dir: Path | None = None,
        **options: Any,
    ) -> None:
        from .factory import open_source
        from .loading import load_core

        config = configure(model, options)
        source = open_source(config, cache_dir, pull_missing=True)
        self._setup(
            lambda: load_core(config, source),
            Tokenizer(source.tokenizer()),
            config.scheduler.max_live,
        )

    @classmethod
    def from_core(
        cls, create_core: Callable[[], Core], tokenizer: Tokenizer, *, max_live: int | None = None
    ) -> Engine:
        """An engine around a core that the caller makes; `create_core` is called on its thread.

        `max_live` bounds the requests that run or wait; None does not.
        """
        engine = cls.__new__(cls)
        engine._setup(create_core, tokenizer, max_live)
        return engine

    def _setup(
        self, create_core: Callable[[], Core], tokenizer: Tokenizer, max_live: int | None
    ) -> None:
        self.max_live = max_live
        self.tokenizer = tokenizer
        self._chat_template = ChatTemplate(tokenizer)
        self._counter = itertools.count()
        self._thread = EngineThread(create_core, max_live)

    @property
    def info(self) -> EngineInfo:
        """What the engine resolved: context length, size of the KV cache, precision."""
        return self._thread.info

    @property
    def stats(self) -> EngineStats:
        """Counters since the start, and gauges as of the newest step."""
        return self._thread.stats

    @overload
    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        n: None = None,
        **options: Any,
    ) -> Completion: ...

    @overload
    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, n: int, **options: Any
    ) -> list[Completion]: ...

    @overload
    def generate(
        self,
        prompt: Prompts,
        params: SamplingParams | None = None,
        *,
        n: int | None = None,
        **options: Any,
    ) -> list[Completion]: ...

    def generate(
        self,
        prompt: Prompt | Prompts,
        params: SamplingParams | None = None,
        *,
        n: int | None = None,
        **options: Any,
    ) -> Completion | list[Completion]:
        """Complete a prompt, or several at once; waits for all.

        Args:
            prompt: one prompt, or a list of them.
            params: how to sample; default or keyword arguments otherwise.
            n: samples per prompt. They share the prompt's KV; with a seed, each derives its own.
            options: fields of `SamplingParams`; and `namespace`, `group`, `priority`, `timeout`,
                `session` and `retain` as in `GenerateRequest`. Samples of one prompt are a group.

        Returns:
            One completion for one prompt without `n`; otherwise a list, all samples of the first prompt
            first.

        Raises:
            InvalidRequest: a parameter or a prompt is not valid.
            ContextLengthExceeded: a prompt leaves no room for output.
            DeadlineExceeded: `timeout` passed.
            QueueFull: more than max_num_seqs + max_queue_len requests would run or wait.
            EngineError: the engine failed, or was closed. Nothing of the call goes on then.
            TypeError: there is no such parameter.
        """
        completions = self._run(self._call(prompt, params, n, options))
        return completions[0] if n is None and _is_single(prompt) else completions

    @overload
    async def agenerate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        n: None = None,
        **options: Any,
    ) -> Completion: ...

    @overload
    async def agenerate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, n: int, **options: Any
    ) -> list[Completion]: ...

    @overload
    async def agenerate(
        self,
        prompt: Prompts,
        params: SamplingParams | None = None,
        *,
        n: int | None = None,
        **options: Any,
    ) -> list[Completion]: ...

    async def agenerate(
        self,
        prompt: Prompt | Prompts,
        params: SamplingParams | None = None,
        *,
        n: int | None = None,
        **options: Any,
    ) -> Completion | list[Completion]:
        """`generate` for asyncio; cancelling it aborts its requests."""
        completions = await self._arun(self._call(prompt, params, n, options))
        return completions[0] if n is None and _is_single(prompt) else completions

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> TextStream:
        """Iterate over the text of one completion as it is generated.

        Arguments and errors are those of `generate`, without `n`; faults of the engine are raised by
        the iteration.
        """
        call = self._call(prompt, params, None, options)
        return TextStream(call, lambda items: self._thread.submit(call.requests, items.put))

    def astream(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> AsyncTextStream:
        """`stream` for asyncio; to be called, and read, on a running event loop."""
        call = self._call(prompt, params, None, options)
        return AsyncTextStream(call, lambda items: self._submit_async(call, items))

    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Completion:
        """The assistant's next message.

        Args:
            messages: the conversation; see `render_chat`.
            params, options: as for `generate`, without `n`.
            template_kwargs: further variables for the model's template.

        Raises:
            InvalidRequest: the model has no template, or it does not take these messages; and what
                `generate` raises.
        """
        prompt_ids = self.render_chat(messages, template_kwargs=template_kwargs)
        return self._run(self._call(prompt_ids, params, None, options))[0]

    async def achat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Completion:
        """`chat` for asyncio."""
        prompt_ids = self.render_chat(messages, template_kwargs=template_kwargs)
        return (await self._arun(self._call(prompt_ids, params, None, options)))[0]

    def render_chat(
        self,
        messages: Messages,
        *,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """A conversation as the prompt that the model was trained on, for `generate` and `stream`.

        Args:
            messages: dictionaries with `role` and `content`, as in OpenAI's API.
            continue_final_message: leave the last message open, for the model to go on with.
            template_kwargs: further variables for the model's template.

        Raises:
            InvalidRequest: the model has no template, or it does not take these messages.
        """
        text = self._chat_template.render(
            messages,
            continue_final_message=continue_final_message,
            template_kwargs=template_kwargs,
        )
        return self.tokenizer.encode(text, add_special_tokens=False)

    def retain(
        self,
        token_ids: Sequence[int],
        session: str,
        seconds: float | None = None,
        *,
        namespace: str = "",
    ) -> None:
        """Evict what is cached of these tokens last, as somebody will come back with them.

        Takes the place of what the session retained before. The engine's budget bounds it, and an
        allocation that needs the memory takes it, so this is a hint.

        Args:
            token_ids: from the start of a sequence.
            session: a name of the caller's.
            seconds: for how long; None for as long as the engine retains anything.
            namespace: of the requests that computed it.

        Raises:
            InvalidRequest: it does not retain so long, or the session has no name.
            ContextLengthExceeded: the sequence is longer than any that the engine computes.
        """
        if not session:
            raise InvalidRequest("session must not be empty.", param="session")
        message = Retain(
            namespace=namespace, session=session, token_ids=list(token_ids), seconds=seconds
        )
        check_retention(message, self.info)
        self._thread.post(message)

    def release(self, session: str, *, namespace: str = "") -> None:
        """End what `retain` began; a session that is not known is ignored. Never waits."""
        self._thread.post(Release(namespace=namespace, session=session))

    def reset_prefix_cache(self) -> None:
        """Forget every cached prefix that no running request holds."""
        self._thread.reset_prefix_cache()

    def close(self) -> None:
        """End the engine after its current step; what still runs gets EngineDead. Safe to call twice."""
        self._thread.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(
        self,
        prompt: Prompt | Prompts,
        params: SamplingParams | None,
        n: int | None,
        options: dict[str, Any],
    ) -> Call:
        envelope = {name: options.pop(name) for name in ENVELOPE if name in options}
        params = sampling_params(params, options)
        params.check_vocabulary(self.info.vocab_size)
        if n is not None and n < 1:
            raise InvalidRequest(f"n must be at least 1, not {n}.", param="n")
        prompts = [prompt] if _is_single(prompt) else prompt
        all_ids = [self._encode(cast(Prompt, one), params) for one in prompts]
        if not all_ids:
            raise InvalidRequest("There must be at least one prompt.", param="prompt")
        requests: list[GenerateRequest] = []
        for prompt_ids in all_ids:
            siblings = {"group": f"prompt-{next(self._counter)}"} if n is not None and n > 1 else {}
            requests += [
                GenerateRequest(
                    request_id=f"call-{next(self._counter)}",
                    prompt_ids=prompt_ids,
                    params=params_of_sample(params, index),
                    **{**siblings, **envelope},
                )
                for index in range(n or 1)
            ]
        return Call(requests, self.tokenizer, self._thread, num_samples=n or 1)

    def _run(self, call: Call) -> list[Completion]:
        items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._thread.submit(call.requests, items.put)
        try:
            while not call.finished:
                call.take(items.get())
        finally:
            call.abort()
        return call.completions()

    async def _arun(self, call: Call) -> list[Completion]:
        items: asyncio.Queue[Item] = asyncio.Queue()
        self._submit_async(call, items)
        try:
            while not call.finished:
                call.take(await items.get())
        finally:
            call.abort()
        return call.completions()

    def _encode(self, prompt: Prompt, params: SamplingParams) -> list[int]:
        if isinstance(prompt, str):
            prompt_ids = self.tokenizer.encode(prompt, add_special_tokens=True)
        else:
            prompt_ids = list(prompt)
        check_prompt(prompt_ids, self.info, num_new=int(params.max_tokens != 0))
        return prompt_ids

    def _submit_async(self, call: Call, items: asyncio.Queue[Item]) -> None:
        loop = asyncio.get_running_loop()

        def deliver(item: Item) -> None:
            try:
                loop.call_soon_threadsafe(items.put_nowait, item)
            except RuntimeError:  # The loop was closed: nobody will ever read this.
                call.abort()

        self._thread.submit(call.requests, deliver)


def _is_single(prompt: Prompt | Prompts) -> bool:
    return isinstance(prompt, str) or not prompt or isinstance(prompt[0], int)
