"""Which form a model's calls have, and how a grammar is to write them."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as FastTokenizer

from ramet.runtime.config import TOOL_CALL_PARSERS
from ramet.runtime.sources.base import TokenizerFiles
from ramet.runtime.text.tokenizer import Tokenizer
from ramet.runtime.tools.form import HERMES, LLAMA3_JSON, MISTRAL_LIST, MISTRAL_NAMED, form_of


def tokenizer(template: str | None, *special: str, text: tuple[str, ...] = ()) -> Tokenizer:
    fast = FastTokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    fast.add_special_tokens([AddedToken(token, special=True) for token in special])
    fast.add_tokens([AddedToken(token, special=False) for token in text])
    return Tokenizer(TokenizerFiles(fast, {}, template, frozenset()))


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (None, "hermes"),
        ("{{ messages }}", "hermes"),
        ("{{ tools | tojson }} within <tool_call></tool_call>", "hermes"),
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        ("{{ '<|python_tag|>' }}", "llama3_json"),
        (
            '{"name": function name, "parameters": dictionary of argument name and value}',
            "llama3_json",
        ),
    ],
)
def test_a_chat_template_shows_the_form(template: str | None, name: str) -> None:
    assert form_of(tokenizer(template), "auto").name == name


def test_the_user_decides_against_the_template() -> None:
    model = tokenizer("<tool_call>")
    for name in TOOL_CALL_PARSERS[1:]:
        assert form_of(model, name).name == name


def test_newer_models_of_mistral_name_the_function_before_its_arguments() -> None:
    assert form_of(tokenizer("[TOOL_CALLS]"), "auto").names_end == ""
    assert form_of(tokenizer("[TOOL_CALLS][ARGS]"), "auto").names_end == "[ARGS]"
    assert MISTRAL_NAMED.around("f") == ("f[ARGS]", "")
    assert MISTRAL_LIST.around("f") == ('{"name": "f", "arguments": ', "}")
    assert LLAMA3_JSON.around("f") == ('{"name": "f", "parameters": ', "}")


def test_markers_that_are_special_tokens_are_known_by_their_ids() -> None:
    form = form_of(tokenizer("[TOOL_CALLS][ARGS]", "<s>", "[TOOL_CALLS]", "[ARGS]"), "auto")
    assert form.special_ids == {"[TOOL_CALLS]": 2, "[ARGS]": 3}
    assert form.shown_ids == {2, 3}
    assert form.pieces("[TOOL_CALLS]f[ARGS]") == [2, "f", 3]


def test_markers_that_are_text_stay_text() -> None:
    form = form_of(tokenizer("<tool_call>", text=("<tool_call>",)), "auto")
    assert form == HERMES and form.pieces("<tool_call>\n") == ["<tool_call>\n"]
    assert form.pieces("") == []
