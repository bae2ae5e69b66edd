"""Rendering of conversations, through the same sandbox as production."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from typing import Any

import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models

from ramet.runtime.errors import InvalidRequest
from ramet.runtime.sources.base import TokenizerFiles
from ramet.runtime.text.chat_template import ChatTemplate, normalize_messages
from ramet.runtime.text.tokenizer import Tokenizer

CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

TOOLS = """\
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for m in messages %}
{{- '[' + m.role + ']' + m.content }}
{%- for call in m.tool_calls or [] %}
{{- call.function.name }}({{ call.function.arguments | tojson }})
{%- endfor %}
{%- endfor %}"""

STRICT = """\
{%- for m in messages %}
{%- if m.role != ['user', 'assistant'][loop.index0 % 2] %}
{{- raise_exception('Conversation roles must alternate') }}
{%- endif %}
{{- bos_token + m.content | trim }}
{%- endfor %}"""

USER = {"role": "user", "content": "hi"}


def template(source: str | None, config: dict[str, Any] | None = None) -> ChatTemplate:
    fast = FastTokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    return ChatTemplate(Tokenizer(TokenizerFiles(fast, config or {}, source, frozenset())))


def call(arguments: Any, name: str = "f") -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(arguments: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [call(arguments)], **fields}


def test_a_conversation_ends_with_the_opening_of_a_turn() -> None:
    text = template(CHATML).render([{"role": "system", "content": "s"}, USER])
    assert text == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_opening_can_be_left_out() -> None:
    text = template(CHATML).render([USER], add_generation_prompt=False)
    assert text == "<|im_start|>user\nhi<|im_end|>\n"


@pytest.mark.parametrize("start", ["The answer is", "The answer is ", "é\n", "\\d{2} %}"])
def test_a_final_message_can_be_left_open(start: str) -> None:
    messages = [USER, {"role": "assistant", "content": start}]
    text = template(CHATML).render(messages, continue_final_message=True)
    assert text == f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{start}"


def test_a_final_message_that_the_template_trims_is_continued_trimmed() -> None:
    messages = [USER, {"role": "assistant", "content": "so "}]
    text = template(STRICT, {"bos_token": "<s>"}).render(messages, continue_final_message=True)
    assert text == "<s>hi<s>so"


def test_leaving_open_and_opening_a_turn_exclude_each_other() -> None:
    with pytest.raises(InvalidRequest, match="exclude each other") as caught:
        template(CHATML).render([USER], add_generation_prompt=True, continue_final_message=True)
    assert caught.value.param == "continue_final_message"


def test_named_special_tokens_are_variables() -> None:
    text = template(
        "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}",
        {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "pad_token": None},
    ).render([USER])
    assert text == "<s>|</s>|"


def test_further_variables_reach_the_template() -> None:
    rendered = template("{{ thinking }}{{ documents[0].text }}").render(
        [USER], template_kwargs={"thinking": True, "documents": [{"text": "d"}]}
    )
    assert rendered == "Trued"


@pytest.mark.parametrize(
    "name", ["messages", "tools", "add_generation_prompt", "chat_template", "bos_token", "tokenize"]
)
def test_variables_must_not_replace_what_the_request_decides(name: str) -> None:
    with pytest.raises(InvalidRequest, match=name) as caught:
        template(CHATML, {"bos_token": "<s>"}).render([USER], template_kwargs={name: "x"})
    assert caught.value.param == "chat_template_kwargs"


def test_a_model_without_a_template_says_what_to_do() -> None:
    with pytest.raises(InvalidRequest, match="no chat template.*v1/completions"):
        template(None).render([USER])


def test_a_long_reason_is_cut() -> None:
    with pytest.raises(InvalidRequest) as caught:
        template("{{ raise_exception('x' * 9999) }}").render([USER])
    assert 500 < len(caught.value.message) < 600


def test_no_messages_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at least one message"):
        template(CHATML).render([])


def test_what_the_template_refuses_is_an_error_of_the_messages() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        template(STRICT, {"bos_token": ""}).render([USER, USER])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content.missing.field }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{% for %}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__base__ }}{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    ],
)
def test_faults_and_escapes_of_a_template_are_errors(source: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be rendered"):
        template(source).render([USER])


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_text_parts_equal_the_plain_string(role: str) -> None:
    parts = [{"type": "text", "text": "part one "}, {"type": "text", "text": "part two"}]
    chat = template(CHATML)
    assert chat.render([{"role": role, "content": parts}]) == chat.render(
        [{"role": role, "content": "part one part two"}]
    )


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://localhost/a.png"}},
        {"type": "input_audio", "input_audio": {}},
        {"type": "text"},
        {"type": "text", "text": None},
        {"text": "no type"},
        "text",
        None,
    ],
)
def test_other_parts_are_refused_by_their_place(part: Any) -> None:
    content = [{"type": "text", "text": "a"}, part]
    with pytest.raises(InvalidRequest) as caught:
        template(CHATML).render([USER, {"role": "user", "content": content}])
    assert caught.value.param == "messages[1].content[1]"


@pytest.mark.parametrize("content", [7, {"type": "text", "text": "a"}, True])
def test_content_of_another_type_is_refused(content: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        template(CHATML).render([{"role": "user", "content": content}])
    assert caught.value.param == "messages[0].content"


@pytest.mark.parametrize("message", [{"content": "a"}, {"role": 3, "content": "a"}, "hi", None])
def test_messages_without_a_role_are_refused(message: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        template(CHATML).render([USER, message])
    assert caught.value.param == "messages[1].role"


@pytest.mark.parametrize("source", [CHATML, TOOLS])
def test_null_empty_and_absent_content_are_the_same(source: str) -> None:
    chat = template(source)
    result = {"role": "tool", "tool_call_id": "c", "content": "10.05"}
    rendered = {
        chat.render([USER, message, result])
        for message in (
            assistant('{"x": 101}'),
            assistant('{"x": 101}', content=None),
            assistant('{"x": 101}', content=""),
        )
    }
    text = rendered.pop()
    assert not rendered
    assert '{"x": 101}' in text and "10.05" in text
    assert "None" not in text and "null" not in text


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ('{"a": {"b": [1, null]}}', {"a": {"b": [1, None]}}),
        ("", {}),
        (None, {}),
        ("{}", {}),
        ("[1]", [1]),
        ("not json", "not json"),
        ('{"a": 1,}', '{"a": 1,}'),
        ('{"p": "C:\\Users"}', '{"p": "C:\\Users"}'),
        ("[" * 100_000, "[" * 100_000),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_arguments_are_objects_where_they_are_json(arguments: Any, seen: Any) -> None:
    text = template(TOOLS).render([USER, assistant(arguments, content="x")])
    assert text == f"[user]hi[assistant]xf({json.dumps(seen)})"


def test_calls_are_written_out_for_a_template_that_does_not_know_them() -> None:
    messages = [USER, assistant('{"ü": 1}', content="Let me see.")]
    text = template(CHATML).render(messages, add_generation_prompt=False)
    assert text.endswith(
        'Let me see.\n<tool_call>\n{"name": "f", "arguments": {"ü": 1}}\n</tool_call><|im_end|>\n'
    )


def test_tools_reach_a_template_that_lists_them_and_are_refused_by_another() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert template(TOOLS).render([USER], tools=tools).startswith(json.dumps(tools))
    assert template(CHATML).render([USER], tools=[]) == template(CHATML).render([USER])
    with pytest.raises(InvalidRequest, match="does not take tools") as caught:
        template(CHATML).render([USER], tools=tools)
    assert caught.value.param == "tools"


@pytest.mark.parametrize("calls", [7, ["f"], [{}], [{"function": {"arguments": "{}"}}]])
def test_tool_calls_of_another_form_are_refused(calls: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"messages\[0\].tool_calls"):
        template(TOOLS).render([{"role": "assistant", "tool_calls": calls}])


def test_a_developer_speaks_as_system_where_the_template_does_not_know_developers() -> None:
    messages = [{"role": "developer", "content": "be brief"}]
    assert "<|im_start|>system\nbe brief" in template(CHATML).render(messages)
    source = "{{ messages[0].role if messages[0].role == 'developer' else 'other' }}"
    assert template(source).render(messages) == "developer"


def test_the_given_messages_are_not_modified() -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}], "name": None},
        assistant('{"a": 1}', content=None),
        {"role": "function", "name": "f", "content": "r"},
    ]
    before = copy.deepcopy(messages)
    plain = normalize_messages(messages, reads_tool_calls=False, reads_developer=False)
    template(CHATML).render(messages)
    assert messages == before
    assert [message["role"] for message in plain] == ["system", "assistant", "tool"]


def test_fields_beside_the_known_ones_are_kept() -> None:
    message = {"role": "assistant", "content": "a", "reasoning_content": "r", "name": "bob"}
    assert normalize_messages([message]) == [message]


def test_the_text_layer_loads_no_transformers_before_a_rendering() -> None:
    code = (
        "import sys, ramet.runtime.text.chat_template, ramet.runtime.text.detokenizer;"
        "assert not {'transformers', 'torch', 'jinja2'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
