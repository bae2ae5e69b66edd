"""A ramet server, by its native route: token ids travel, and siblings travel together.

Requests of one program that are made at once become one call, so that a fork of sixteen is
one round trip and one batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ..chat import Frames
from ..errors import BackendError, UsageError
from ..params import Params
from ..waiting import LANGUAGE_LOOP
from .base import Generated, GenRequest, Message, OnText, OptionScore, Sample, Scored, ScoreRequest
from .http import Http

if TYPE_CHECKING:
    from collections.abc import Coroutine

_MAX_TOGETHER = 256
# A body's thread may still be adding to the other branches of a fork. A pause as long as the interpreter
# lets one thread run says that it is done; nobody waits longer than the second number.
_PAUSE_SECONDS, _MAX_WAIT_SECONDS = 0.005, 0.03


@dataclass(eq=False, slots=True)
class _Call:
    """One request on its way.

    Attributes:
        body: its JSON.
        on_text: gets new text of its first sample.
        result: what the server answered.
    """

    body: dict[str, Any]
    on_text: OnText | None
    result: asyncio.Future[dict[str, Any]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


@dataclass(eq=False, slots=True)
class _Trip:
    """Calls that travel together.

    Attributes:
        arrived: set once the server knows their names.
        left: names of those that nobody waits for any more, and that the server has not been told of.
    """

    calls: list[_Call]
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    left: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Gathered:
    """Requests of one program that will travel together."""

    calls: list[_Call]
    timer: asyncio.TimerHandle | None = None
    latest: float = 0.0


class RuntimeEndpoint:
    """A ramet server as a backend.

    Args:
        base_url: of the server, such as "http://127.0.0.1:8000".
        api_key: sent as a bearer token.
        verify: file of the certificates that are trusted; None is the system's.
        chat_template_name: SGLang's; roles are written with the template of the model, so None is all
            that it may be.
        cache_salt: requests with different salts share no cache.

    Raises:
        UsageError: a template is named.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: str | None = None,
        chat_template_name: str | None = None,
        *,
        cache_salt: str | None = None,
    ) -> None:
        if chat_template_name is not None:
            raise UsageError(
                f"chat_template_name={chat_template_name!r} is not supported: roles are written with the "
                "chat template that comes with the served model. To use another, put it into the model's "
                "folder as chat_template.jinja."
            )
        self._http = Http(base_url.rstrip("/"), api_key, verify)
        self._salt = {} if cache_salt is None else {"cache_salt": cache_salt}
        self._gathered: dict[str, _Gathered] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.frames: Frames | None = Frames(self._render)
        self.restarts = False
        self.retains = True

    def check(self, params: Params) -> None:
        """Pass: the server says itself what it cannot do."""

    async def generate(self, request: GenRequest) -> Generated:
        """Sample; see `Backend`."""
        params = request.params
        body = {**self._prompt(request), **params.sampling(), **_envelope(params)}
        if params.n is not None:
            body["n"] = params.n
        if params.scored_from is not None:
            body["logprob_start_len"] = params.scored_from
        if params.constraint is not None:
            name, value = params.constraint
            body |= {"structured_outputs": {"choice": value}} if name == "choice" else {name: value}
        result = await self._answer(body, request.group, request.on_text)
        return Generated(
            samples=[_sample(sample) for sample in result["samples"]],
            prompt_ids=tuple(result["prompt_ids"]),
            num_prompt_tokens=result["num_prompt_tokens"],
            num_cached_tokens=result["num_cached_tokens"],
            prompt_logprobs=None
            if params.scored_from is None
            else tuple(result["prompt_logprobs"]),
        )

    async def score(self, request: ScoreRequest) -> Scored:
        """Score options; see `Backend`."""
        body = {**self._prompt(request), "options": request.options, **_envelope(request.params)}
        if request.unconditional:
            body["unconditional"] = True
        result = await self._answer(body, request.group, None)
        options = tuple(
            OptionScore(
                text=option["text"],
                token_ids=tuple(option["token_ids"]),
                tokens=tuple(option["tokens"]),
                logprobs=tuple(option["logprobs"]),
                unconditional=tuple(option.get("unconditional_logprobs", ())),
            )
            for option in result["options"]
        )
        return Scored(
            options=options,
            num_prompt_tokens=result["num_prompt_tokens"],
            num_cached_tokens=result["num_cached_tokens"],
        )

    async def _render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> str:
        body: dict[str, Any] = {
            "messages": [message.as_dict() for message in messages],
            "add_generation_prompt": add_generation_prompt,
        }
        if tools is not None:
            body["tools"] = tools
        return str((await self._http.post("/render", body))["text"])

    def _prompt(self, request: GenRequest | ScoreRequest) -> dict[str, Any]:
        prompt = request.prompt
        ids = {"input_ids": prompt.ids} if prompt.ids else {}
        return {**ids, "text": prompt.text, **self._salt}

    async def _answer(
        self, body: dict[str, Any], group: str | None, on_text: OnText | None
    ) -> dict[str, Any]:
        if group is None:
            call = _Call(body, on_text)
            self._send([call])
            return await call.result
        call = _Call({**body, "group": group, "request_id": uuid4().hex}, on_text)
        waiting = self._gathered.setdefault(group, _Gathered([]))
        waiting.calls.append(call)
        loop = asyncio.get_running_loop()
        if waiting.timer is None:
            waiting.latest = loop.time() + _MAX_WAIT_SECONDS
        else:
            waiting.timer.cancel()
        when = min(loop.time() + _PAUSE_SECONDS, waiting.latest)
        waiting.timer = loop.call_at(when, self._depart, group)
        return await call.result

    def _depart(self, group: str) -> None:
        calls = [call for call in self._gathered.pop(group).calls if not call.result.done()]
        for start in range(0, len(calls), _MAX_TOGETHER):
            self._send(calls[start : start + _MAX_TOGETHER])

    def _send(self, calls: list[_Call]) -> None:
        trip = _Trip(calls)
        task = self._start(self._travel(trip))
        for call in calls:
            call.result.add_done_callback(partial(self._left, trip, call, task))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _left(self, trip: _Trip, call: _Call, task: asyncio.Task[None], _: object) -> None:
        """Somebody's request is done; if it was cancelled, the server must hear of it."""
        if not call.result.cancelled():
            return
        if all(other.result.done() for other in trip.calls):
            task.cancel()  # Which ends the connection, and with it all of them.
            return
        trip.left.append(call.body["request_id"])
        if len(trip.left) == 1:
            self._start(self._cancel(trip))

    async def _cancel(self, trip: _Trip) -> None:
        await trip.arrived.wait()
        names, trip.left = trip.left, []
        with suppress(BackendError):  # The server is gone, or older; the answer is not awaited.
            await self._http.post("/cancel", {"request_ids": names})

    async def _travel(self, trip: _Trip) -> None:
        calls = trip.calls
        body = {"requests": [call.body for call in calls], "stream": True}
        try:
            async for event in self._http.events("/generate", body, trip.arrived.set):
                self._take(calls, event)
            raise BackendError("The server's answer ended early.")
        except Exception as error:
            for call in calls:
                if not call.result.done():
                    call.result.set_exception(error)
        finally:
            trip.arrived.set()

    @staticmethod
    def _take(calls: list[_Call], event: dict[str, Any]) -> None:
        call = calls[event["index"]]
        if call.result.done():
            return
        if "result" in event:
            call.result.set_result(event["result"])
        elif "error" in event:
            call.result.set_exception(BackendError(event["error"]["message"]))
        elif "cancelled" in event:
            call.result.set_exception(BackendError("The request was cancelled at the server."))
        elif call.on_text is not None and event["sample"] == 0:
            call.on_text(event["delta"], event.get("logprobs", ()))

    async def retain(self, session: str, ids: tuple[int, ...], seconds: float | None) -> None:
        """Keep a prefix for a state that waits; see `Backend`."""
        given = {} if seconds is None else {"seconds": seconds}
        body = {"session": session, "input_ids": ids, **given, **self._salt}
        await self._http.post("/retain", body)

    def release(self, session: str) -> None:
        """End what `retain` began."""
        LANGUAGE_LOOP.call(self._release(session))

    async def _release(self, session: str) -> None:
        with suppress(BackendError):  # It ends by itself.
            await self._http.post("/release", {"session": session, **self._salt})

    def flush_cache(self) -> None:
        """Forget every cached prefix that no running request holds."""
        LANGUAGE_LOOP.call(self._http.post("/reset_prefix_cache", {})).result()

    def get_server_info(self) -> dict[str, Any]:
        """The model that is served."""
        (card,) = LANGUAGE_LOOP.call(self._http.get("/v1/models")).result()["data"]
        return dict(card)

    def close(self) -> None:
        """Close the connections. Safe to call twice."""
        LANGUAGE_LOOP.call(self._http.close()).result()

    def __enter__(self) -> RuntimeEndpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _envelope(params: Params) -> dict[str, Any]:
    given = {"timeout": params.timeout, "priority": params.priority}
    return {name: value for name, value in given.items() if value is not None}


def _sample(sample: dict[str, Any]) -> Sample:
    return Sample(
        text=sample["text"],
        kept_ids=tuple(sample["token_ids"][: sample["num_kept"]]),
        rest=sample["rest"],
        num_tokens=len(sample["token_ids"]),
        finish_reason=sample["finish_reason"],
        stop_reason=sample["stop_reason"],
        logprobs=None if sample["logprobs"] is None else tuple(sample["logprobs"]),
    )
