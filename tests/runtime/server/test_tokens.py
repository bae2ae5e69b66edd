"""/tokenize and /detokenize agree with each other and with chat."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from ramet.runtime.engine.client import EngineStatus

HI = [{"role": "user", "content": "How many?"}]


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize("text", ["naïve 日本語 🧪", " leading", "tabs\tand\nlines", "<|im_end|>"])
async def test_tokens_and_text_go_round(http: httpx.AsyncClient, prefix: str, text: str) -> None:
    out = (await http.post(f"{prefix}/tokenize", json={"prompt": text})).json()
    assert out["count"] == len(out["tokens"]) > 0 and out["max_model_len"] == 512
    back = (await http.post(f"{prefix}/detokenize", json={"tokens": out["tokens"]})).json()
    assert back == {"prompt": text, "text": text}


async def test_a_conversation_counts_as_chat_counts_it(http: httpx.AsyncClient) -> None:
    out = (await http.post("/tokenize", json={"messages": HI})).json()
    chat = (await http.post("/v1/chat/completions", json={"messages": HI})).json()
    assert out["count"] == chat["usage"]["prompt_tokens"]
    flags = {"continue_final_message": True, "add_generation_prompt": False}
    shorter = (await http.post("/tokenize", json={"messages": HI, **flags})).json()
    assert shorter["count"] < out["count"]


async def test_token_strings_come_on_request(http: httpx.AsyncClient) -> None:
    out = (await http.post("/tokenize", json={"prompt": "ab"})).json()
    assert out["token_strs"] is None
    out = (await http.post("/tokenize", json={"prompt": "ab", "return_token_strs": True})).json()
    assert out["token_strs"] == ["a", "b"]


async def test_several_texts_are_tokenized_side_by_side(http: httpx.AsyncClient) -> None:
    body = {"prompt": ["ab", "c"], "return_token_strs": True}
    out = (await http.post("/tokenize", json=body)).json()
    assert out["count"] == [2, 1] and out["token_strs"] == [["a", "b"], ["c"]]
    assert (await http.post("/tokenize", json={"prompt": []})).json()["count"] == []


async def test_special_tokens_are_left_out_on_request(http: httpx.AsyncClient) -> None:
    body = {"tokens": [258, 257], "skip_special_tokens": True}
    assert (await http.post("/detokenize", json=body)).json()["text"] == ""


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "x", "messages": HI}),
        ("/tokenize", {"prompt": 5}),
        ("/tokenize", {"messages": []}),
        ("/tokenize", {"messages": [{"role": "user", "content": 5}]}),
        ("/tokenize", {"messages": HI, "tools": [{"type": "function"}]}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": "x"}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [10**9]}),
    ],
    ids=str,
)
async def test_an_invalid_request_is_a_400(http: httpx.AsyncClient, path: str, body: Any) -> None:
    response = await http.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_without_the_engines_facts_the_answer_is_a_503(
    http: httpx.AsyncClient, engine: Any
) -> None:
    engine.status = EngineStatus.STARTING
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
        assert (await http.post(path, json=body)).status_code == 503


async def test_the_tokenizer_tells_its_special_tokens_and_template(http: httpx.AsyncClient) -> None:
    info = (await http.get("/tokenizer_info")).json()
    assert info["eos_token"] == "<|im_end|>" and info["bos_token"] is None
    assert "add_generation_prompt" in info["chat_template"] and info["model_max_length"] == 512
