"""One request of a text API writes what several gens ask for, and never changes what they say."""

from __future__ import annotations

from typing import Any

import pytest

import ramet as sgl

WRITTEN = " Ada\nBirthday: 1815\nJob: writer\n"


@pytest.fixture(autouse=True)
def _script(text_backend: Any) -> None:
    """What the backend writes behind "Name:" is WRITTEN, as far as the program goes along."""

    def reply(prompt: str) -> str:
        so_far = prompt.rpartition("Name:")[2]
        return WRITTEN[len(so_far) :] if WRITTEN.startswith(so_far) else " other\n"

    text_backend.reply = reply


def character(birthday: str = "\nBirthday:", **how: Any) -> Any:
    def body(s: sgl.State) -> None:
        s += "Name:" + sgl.gen("name", stop="\n")
        s += birthday + sgl.gen("birthday", stop="\n", **how)
        s += "\nJob:" + sgl.gen("job", stop="\n") + "\n"

    return body


def test_what_was_written_ahead_answers_later_gens(text_backend: Any) -> None:
    plain = sgl.function(character()).run()
    assert len(text_backend.requests) == 3
    state = sgl.function(character(), num_api_spec_tokens=64).run()
    assert state.text() == plain.text() == "Name:" + WRITTEN
    assert [state[name] for name in ("name", "birthday", "job")] == [" Ada", " 1815", " writer"]
    assert len(text_backend.requests) == 4
    assert text_backend.requests[3].params.stop is None
    assert state.meta("job")["stop_reason"] == "\n"
    assert state.meta("job")["prompt_tokens"] == 0


def test_text_that_was_not_foreseen_is_asked_about_anew(text_backend: Any) -> None:
    state = sgl.function(character("\nBorn:"), num_api_spec_tokens=64).run()
    assert [state[name] for name in ("name", "birthday", "job")] == [" Ada", " other", " other"]
    assert len(text_backend.requests) == 3


@pytest.mark.parametrize(
    "how", [{"temperature": 0.5}, {"n": 2}, {"logprobs": 1}, {"min_tokens": 1}, {"regex": ".*"}]
)
def test_a_gen_that_is_sampled_otherwise_is_asked_for_itself(
    text_backend: Any, how: dict[str, Any]
) -> None:
    sgl.function(character(**how), num_api_spec_tokens=64).run()
    assert len(text_backend.requests) == 3


def test_a_limit_holds_as_if_nothing_had_been_guessed(text_backend: Any) -> None:
    state = sgl.function(character(max_tokens=3), num_api_spec_tokens=64).run()
    assert state["birthday"] == " 18"
    assert state.meta("birthday")["finish_reason"] == "length"


def test_branches_have_the_guess_and_part_company(text_backend: Any) -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s: sgl.State) -> None:
        s += "Name:" + sgl.gen("name", stop="\n")
        forks = s.fork(2)
        forks += ["\nBirthday:", "\nBorn:"]
        forks += sgl.gen("born", stop="\n")
        forks.join()

    assert program.run()["born"] == [" 1815", " other"]
    assert len(text_backend.requests) == 2


def test_a_guess_does_not_cross_a_message(text_backend: Any) -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s: sgl.State) -> None:
        s += sgl.user("q")
        s += sgl.assistant("Name:" + sgl.gen("name", stop="\n") + "\n")
        s += sgl.assistant("Birthday:" + sgl.gen("born", stop="\n"))

    program.run()
    assert len(text_backend.requests) == 2


def test_who_follows_gets_every_gen_from_the_model(text_backend: Any) -> None:
    state = sgl.function(character(), num_api_spec_tokens=64).run(stream=True)
    assert "".join(state.text_iter()) == "Name:" + WRITTEN
    assert len(text_backend.requests) == 3


def test_where_tokens_travel_nothing_is_guessed(backend: Any) -> None:
    backend.reply = lambda prompt: "ok\n"
    state = sgl.function(character(), num_api_spec_tokens=64).run()
    assert state["job"] == "ok" and len(backend.requests) == 3
