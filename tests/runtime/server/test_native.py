"""/generate and /render: tokens in, tokens out, several requests in one call."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from ramet.runtime.request import FinishReason, RequestOutput

# What the fake engine says of a token: see fake_logprobs.


def logprob(token_id: int) -> float:
    return -(token_id % 8 + 1) / 8


async def one(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    response = await http.post("/generate", json=body)
    assert response.status_code == 200, response.text
    (result,) = response.json()["results"]
    assert isinstance(result, dict)
    return result


def events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_ids_come_first_and_the_text_behind_them(
    http: httpx.AsyncClient, engine: Any, tokenizer: Any
) -> None:
    result = await one(http, input_ids=[3, 4], text="ab", temperature=0)
    encoded = tokenizer.encode("ab", False)
    assert engine.requests[0].prompt_ids == [3, 4, *encoded]
    assert engine.requests[0].params.max_tokens == 128
    assert result["prompt_ids"] == encoded and result["num_prompt_tokens"] == 4
    (sample,) = result["samples"]
    said = tokenizer.encode("Hello there!", False)
    assert sample["text"] == "Hello there!" and sample["rest"] == ""
    assert sample["token_ids"] == [*said, 258] and sample["num_kept"] == len(said)
    assert sample["finish_reason"] == "stop" and sample["logprobs"] is None


async def test_a_stop_string_leaves_the_tokens_before_it(http: httpx.AsyncClient) -> None:
    (sample,) = (await one(http, text="x", stop=" the"))["samples"]
    assert sample["text"] == "Hello" and sample["stop_reason"] == " the"
    assert sample["num_kept"] == 5 < len(sample["token_ids"])


async def test_a_pattern_keeps_a_token_that_ends_inside_a_character(
    http: httpx.AsyncClient, engine: Any, tokenizer: Any
) -> None:
    ids = tuple(tokenizer.encode("bé", False)[:-1])
    engine.reply = lambda request: [
        RequestOutput(
            request_id=request.request_id,
            token_ids=ids,
            finish_reason=FinishReason.STOP,
            stop_reason="b+",
        )
    ]
    (sample,) = (await one(http, text="x", stop_regex="b+"))["samples"]
    assert sample["text"] == "b\ufffd" and sample["stop_reason"] == "b+"
    assert sample["num_kept"] == len(sample["token_ids"]) == 2 and sample["rest"] == ""


async def test_a_pattern_keeps_an_end_token_that_it_matches(
    http: httpx.AsyncClient, engine: Any
) -> None:
    engine.reply = lambda request: [
        RequestOutput(
            request_id=request.request_id,
            token_ids=(258,),
            finish_reason=FinishReason.STOP,
            stop_reason="im_e.d",
        )
    ]
    how = {"ignore_eos": True, "skip_special_tokens": False}
    (sample,) = (await one(http, text="x", stop_regex="im_e.d", **how))["samples"]
    assert sample["text"] == "<|im_end|>" and sample["num_kept"] == 1


async def test_a_length_limit_keeps_every_token(http: httpx.AsyncClient) -> None:
    (sample,) = (await one(http, text="x", max_tokens=4, logprobs=1))["samples"]
    assert sample["finish_reason"] == "length" and sample["num_kept"] == 4
    assert [entry["token_id"] for entry in sample["logprobs"]] == sample["token_ids"]


async def test_samples_share_one_prompt(http: httpx.AsyncClient, engine: Any) -> None:
    result = await one(http, text="x", n=3)
    assert len(result["samples"]) == len(engine.requests) == 3


async def test_several_requests_come_back_in_order(http: httpx.AsyncClient, engine: Any) -> None:
    requests = [{"text": "a", "max_tokens": 3}, {"text": "b", "n": 2}, {"input_ids": [9]}]
    results = (await http.post("/generate", json={"requests": requests})).json()["results"]
    assert [len(result["samples"]) for result in results] == [1, 2, 1]
    assert results[0]["samples"][0]["text"] == "Hel"
    assert [request.prompt_ids for request in engine.requests][-1] == [9]


async def test_requests_of_one_call_are_siblings_and_so_are_those_of_one_group(
    http: httpx.AsyncClient, engine: Any
) -> None:
    for body in (
        {"requests": [{"text": "a"}, {"text": "b", "n": 2}, {"text": "c", "options": ["x"]}]},
        {"requests": [{"text": "a", "group": "mine"}]},
        {"text": "d", "group": "mine"},
        {"text": "e"},
    ):
        assert (await http.post("/generate", json=body)).status_code == 200
    groups = [request.group for request in engine.requests]
    assert len(set(groups[:4])) == 1 and groups[4:6] == ["mine", "mine"]
    assert len({groups[0], "mine", groups[6]}) == 3


async def test_options_are_scored_in_one_call(
    http: httpx.AsyncClient, engine: Any, tokenizer: Any
) -> None:
    result = await one(http, input_ids=[1, 2], text="q: ", options=["yes", "no"])
    assert len(engine.requests) == 2
    for request in engine.requests:
        assert request.params.max_tokens == 0
        assert request.params.prompt_logprobs_start == 5
    for option, scored in zip(["yes", "no"], result["options"], strict=True):
        ids = tokenizer.encode(option, False)
        assert scored["text"] == option and scored["token_ids"] == ids
        assert scored["logprobs"] == [logprob(i) for i in ids]


async def test_options_are_scored_without_the_prompt_on_request(
    http: httpx.AsyncClient, engine: Any, tokenizer: Any
) -> None:
    result = await one(http, text="q", options=["yes", "no"], unconditional=True)
    assert len(engine.requests) == 4
    ids = tokenizer.encode("yes", False)
    first = result["options"][0]
    assert first["logprobs"] == [logprob(i) for i in ids]
    # There is nothing before the first token of an option that stands alone.
    assert first["unconditional_logprobs"] == [0.0, *[logprob(i) for i in ids[1:]]]


async def test_a_stream_names_the_request_of_each_event(http: httpx.AsyncClient) -> None:
    body = {"requests": [{"text": "a"}, {"text": "b", "max_tokens": 2}], "stream": True}
    got = events((await http.post("/generate", json=body)).text)
    for index, text in enumerate(["Hello there!", "He"]):
        mine = [event for event in got if event["index"] == index]
        assert "".join(event["delta"] for event in mine[:-1]) == text
        assert mine[-1]["result"]["samples"][0]["text"] == text


async def test_one_failure_in_a_stream_leaves_the_others(
    http: httpx.AsyncClient, engine: Any
) -> None:
    usual = engine.reply

    def reply(request: Any) -> Any:
        if request.prompt_ids[0] == 7:
            failed: dict[str, Any] = {"finish_reason": FinishReason.ERROR, "error": "broken"}
            return [RequestOutput(request_id=request.request_id, **failed)]
        return usual(request)

    engine.reply = reply
    body = {"requests": [{"input_ids": [7]}, {"text": "b"}], "stream": True}
    got = events((await http.post("/generate", json=body)).text)
    ends = {event["index"]: event for event in got if "delta" not in event}
    assert ends[0]["error"]["type"] == "server_error"
    assert ends[1]["result"]["samples"][0]["text"] == "Hello there!"


async def test_a_refused_call_leaves_nothing_behind(http: httpx.AsyncClient, engine: Any) -> None:
    body = {"requests": [{"text": "a"}, {"text": "b", "temperature": 9}]}
    assert (await http.post("/generate", json=body)).status_code == 400
    assert engine.requests == [] and not engine.live


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": "x", "nope": 1}, "nope"),
        ({"text": "x", "add_special_tokens": False}, "add_special_tokens"),
        ({"text": "x", "unconditional": True}, "unconditional"),
        ({"text": "x", "options": []}, "options"),
        ({"text": "x", "options": ["a"], "temperature": 0}, "temperature"),
        ({"text": "x", "max_tokens": -1}, "max_tokens"),
        ({"input_ids": [100000]}, "text"),
        ({"requests": []}, "requests"),
        ({"requests": [{"text": "x"}], "temperature": 1}, "temperature"),
        ({"requests": [{"text": "x"}, {"text": 5}]}, "requests[1].text"),
        ({"requests": [{"text": "x", "nope": 5}]}, "requests[0].nope"),
        ({"text": "x", "model": "other"}, "model"),
    ],
)
async def test_what_makes_no_sense_is_refused_by_name(
    http: httpx.AsyncClient, body: dict[str, Any], param: str
) -> None:
    response = await http.post("/generate", json=body)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == param


async def test_a_client_that_leaves_aborts_all_of_its_requests(url: str, engine: Any) -> None:
    engine.delay = 0.01
    body = {"requests": [{"text": "a"}, {"text": "b"}], "stream": True}
    async with httpx.AsyncClient(base_url=url) as client:
        async with client.stream("POST", "/generate", json=body) as response:
            async for _ in response.aiter_lines():
                break
        await client.get("/version")
        for _ in range(200):
            if not engine.live:
                break
            await client.get("/version")
    assert not engine.live and len(engine.aborted) == 2


async def test_a_conversation_is_rendered_by_the_models_template(
    http: httpx.AsyncClient, engine: Any, tokenizer: Any
) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    body = {"messages": messages, "add_generation_prompt": True}
    text = (await http.post("/render", json=body)).json()["text"]
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    plain = (await http.post("/render", json={"messages": messages})).json()["text"]
    assert text == plain + "<|im_start|>assistant\n"
    assert (await http.post("/render", json={"messages": []})).status_code == 400
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    told = await http.post("/render", json={**body, "tools": tools})
    await http.post("/v1/chat/completions", json={"messages": messages, "tools": tools})
    prompt = tokenizer.decode(engine.requests[-1].prompt_ids, False)
    assert told.json()["text"] == prompt and "<tools>" in prompt
    assert (await http.post("/render", json={**body, "tools": "f"})).status_code == 400


async def test_a_pattern_reaches_the_engine(http: httpx.AsyncClient, engine: Any) -> None:
    await one(http, text="x", stop_regex=r"\d+")
    await one(http, text="x", stop_regex=["a.", "b"], stop="c")
    await one(http, text="x", stop_regex="")
    params = [request.params for request in engine.requests]
    assert [p.stop_regex for p in params] == [(r"\d+",), ("a.", "b"), ()]
    assert params[1].stop_strings == ("c", "b")
    refused = await http.post("/generate", json={"text": "x", "stop_regex": "(a+)+$|(?=b)"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "stop_regex"


async def test_one_sample_scores_the_prompt_from_a_position(
    http: httpx.AsyncClient, engine: Any
) -> None:
    result = await one(http, input_ids=[3, 4, 5, 6], n=2, logprobs=1, logprob_start_len=1)
    first, second = (request.params for request in engine.requests)
    assert (first.prompt_logprobs, first.prompt_logprobs_start) == (1, 2)
    assert second.prompt_logprobs is None
    assert [entry["token_id"] for entry in result["prompt_logprobs"]] == [4, 5, 6]
    assert [entry["logprob"] for entry in result["prompt_logprobs"]] == [
        None,
        logprob(5),
        logprob(6),
    ]
    assert "prompt_logprobs" not in await one(http, text="x", logprobs=1, logprob_start_len=-1)
    assert "prompt_logprobs" not in await one(http, text="x", logprob_start_len=0)
    body = {"input_ids": [3], "logprobs": 0, "logprob_start_len": 1}
    refused = await http.post("/generate", json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "logprob_start_len"
