"""The OpenAI backend against a ramet server's OpenAI routes, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

import ramet as sgl
from ramet import OpenAI, ProgramError, Unsupported


@pytest.fixture(scope="module")
def openai(server_url: str) -> Iterator[OpenAI]:
    with OpenAI("tiny", f"{server_url}/v1", continues_messages=True) as made:
        yield made


@sgl.function
def chat(s: sgl.State, lead: str = "") -> None:
    s += sgl.system("Be brief.")
    s += sgl.user("Hi")
    s += sgl.assistant(lead + sgl.gen("x", max_tokens=8))
    s += sgl.user("And?")
    s += sgl.assistant(sgl.gen("y", max_tokens=8))


@sgl.function
def plain(s: sgl.State, **how: Any) -> None:
    s += "Once upon" + sgl.gen("x", max_tokens=8, **how)
    s += " then" + sgl.gen("y", max_tokens=4)


@pytest.mark.parametrize("lead", ["", "Well, "])
def test_conversations_go_as_messages_and_come_back_the_same(
    openai: OpenAI, runtime: Any, lead: str
) -> None:
    there = chat.run(lead, backend=openai, temperature=0)
    here = chat.run(lead, backend=runtime, temperature=0)
    assert there.messages() == here.messages()
    assert there.meta("x")["prompt_tokens"] == here.meta("x")["prompt_tokens"]
    assert there.meta("y")["cached_tokens"] > 0


def test_plain_text_goes_to_completions(openai: OpenAI, runtime: Any) -> None:
    there = plain.run(backend=openai, temperature=0)
    assert there["x"] == plain.run(backend=runtime, temperature=0)["x"]
    assert there.text() == f"Once upon{there['x']} then{there['y']}"


@pytest.mark.parametrize("program", [chat, plain])
def test_answers_can_be_followed(openai: OpenAI, program: sgl.Function) -> None:
    state = program.run(backend=openai, temperature=0, stream=True)
    whole = program.run(backend=openai, temperature=0)
    assert "".join(state.text_iter("x")) == state["x"] == whole["x"]
    assert "".join(state.text_iter("y")) == whole["y"]


def test_samples_and_log_probabilities_come_back(openai: OpenAI) -> None:
    state = plain.run(n=2, logprobs=1, temperature=1, seed=1, backend=openai)
    assert len(state["x"]) == 2
    assert all(entry["logprob"] <= 0 for entry in state.meta("x")["logprobs"])


def test_json_is_asked_for_by_its_schema(openai: OpenAI) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += sgl.user("x")
        s += sgl.assistant(sgl.gen("x", max_tokens=60, type=list[bool]))

    assert isinstance(program.run(backend=openai, temperature=0)["x"], list)


@pytest.mark.parametrize(
    "how", [{"regex": "a"}, {"top_k": 1}, {"min_tokens": 1}, {"priority": 1}, {"dtype": int}]
)
def test_what_the_api_has_not_is_refused_at_once(openai: OpenAI, how: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match=next(iter(how)) if "dtype" not in how else "regex"):
        plain.run(backend=openai, **({} if "priority" in how else how), **(
            how if "priority" in how else {}
        ))  # fmt: skip


def test_scores_and_begun_messages_are_refused(server_url: str, openai: OpenAI) -> None:
    @sgl.function
    def choosing(s: sgl.State) -> None:
        s += "x" + sgl.select("y", ["a", "b"])

    @sgl.function
    def loose(s: sgl.State) -> None:
        s += "loose" + sgl.user("x") + sgl.assistant(sgl.gen("x"))

    @sgl.function
    def writes_questions(s: sgl.State) -> None:
        s += sgl.user(sgl.gen("x"))

    strict = OpenAI("tiny", f"{server_url}/v1")
    for program, backend, word in (
        (choosing, openai, "select"),
        (loose, openai, "in roles"),
        (writes_questions, openai, "user message"),
        (chat.bind(lead="Well"), strict, "begun"),
    ):
        with pytest.raises(ProgramError, match=word):
            program.run(backend=backend)


def test_a_gen_may_set_what_extra_names(server_url: str) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += "x" + sgl.gen("long", max_tokens=6, ignore_eos=True, logit_bias={2: 100.0})
        s += "x" + sgl.gen("short", max_tokens=6, logit_bias={2: 100.0})

    with OpenAI("tiny", f"{server_url}/v1", extra={"ignore_eos": False}) as backend:
        state = program.run(backend=backend, temperature=0)
    assert state.meta("long")["completion_tokens"] == 6
    assert state.meta("short")["finish_reason"] == "stop"


Answer = str | list[str | bytes]


@contextmanager
def scripted(
    *answers: Answer, lists_tokens: bool = True, takes_logprobs: bool = True
) -> Iterator[tuple[str, list[tuple[str | None, Any]]]]:
    """A server that gives these texts in turn; its URL, and the key and body of each request.

    Of an answer that is given by tokens it lists them, if asked to and with `lists_tokens`. Without
    `takes_logprobs` that is a bad request.
    """
    seen: list[tuple[str | None, Any]] = []
    texts = iter(answers)

    def choice_of(answer: Answer, body: Any) -> dict[str, Any]:
        tokens = [] if isinstance(answer, str) else [_as_bytes(token) for token in answer]
        text = answer if isinstance(answer, str) else b"".join(tokens).decode()
        choice = {"text": text, "message": {"content": text}, "finish_reason": "stop"}
        if tokens and lists_tokens and body.get("logprobs"):
            entries = [
                {"token": repr(token), "bytes": list(token), "logprob": -1.0} for token in tokens
            ]
            choice["logprobs"] = {"content": entries}
        return choice

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            seen.append((self.headers.get("authorization"), body))
            if body.get("logprobs") and not takes_logprobs:
                self.send_error(400)
                return
            given = next(texts)
            usage = {"completion_tokens": len(given)}
            answer = json.dumps({"choices": [choice_of(given, body)], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        thread = Thread(target=listening.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}/v1", seen
        listening.shutdown()
        thread.join()


def _as_bytes(token: str | bytes) -> bytes:
    return token.encode() if isinstance(token, str) else token


@pytest.mark.parametrize("names_server", [True, False])
def test_the_key_in_the_environment_is_for_the_server_that_is_named_there(
    monkeypatch: pytest.MonkeyPatch, names_server: bool
) -> None:
    @sgl.function
    def program(s: sgl.State) -> None:
        s += "x" + sgl.gen("y")

    with scripted("hi") as (url, seen):
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        with OpenAI("m", url) if names_server else OpenAI("m") as backend:
            assert program.run(backend=backend)["y"] == "hi"
    assert [key for key, _ in seen] == [None if names_server else "Bearer secret"]


@sgl.function(num_api_spec_tokens=64)
def character(s: sgl.State) -> None:
    s += sgl.user("A character, please.")
    s += sgl.assistant("Name:" + sgl.gen("name", stop="\n") + "\nJob:" + sgl.gen("job", stop="\n"))


def test_a_begun_message_is_written_from_its_start_where_a_program_speculates() -> None:
    with scripted("Sure!\nName: No", "Name: Ada\nJob: writer\n") as (url, seen):
        with OpenAI("m", url) as backend:
            state = character.run(backend=backend)
    assert (state["name"], state["job"]) == (" Ada", " writer")
    assert state.messages()[-1]["content"] == "Name: Ada\nJob: writer"
    assert [len(body["messages"]) for _, body in seen] == [1, 1]


@sgl.function(num_api_spec_tokens=64)
def short(s: sgl.State, **how: Any) -> None:
    s += sgl.user("A character, please.")
    s += sgl.assistant("Name:" + sgl.gen("name", stop="\n", **{"max_tokens": 4, **how}))


COUNTESS: Answer = ["Na", "me: ", "Aug", "usta", " Ada", " King", ", Countess", "\n"]


@pytest.mark.parametrize(
    ("answer", "name", "reason"),
    [
        (["Name:", " Ada", "\n"], " Ada", "stop"),
        (COUNTESS, " Augusta Ada", "length"),
        (["Name", ":", " A", "da ", "Lo", "ve", "\n"], " Ada Love", "length"),
        (["Name", ":", " A", "da ", "Lo", "\n", "etc."], " Ada Lo", "stop"),
        (["Name:", " ", b"\xf0\x9f", b"\x98", b"\x80", "tail"], " \U0001f600", "length"),
        (["Name:", " a", b"b", b"\xf0\x9f", b"\x98", b"\x80", "tail"], " ab", "length"),
        (["Name:", " a", "b", "c", "d"], " abcd", "stop"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_message_written_from_its_start_is_cut_at_the_limit(
    answer: Answer, name: str, reason: str, stream: bool
) -> None:
    with scripted(answer) as (url, seen), OpenAI("m", url) as backend:
        state = short.run(backend=backend, stream=stream)
        assert state["name"] == name
        if stream:
            assert "".join(state.text_iter()).endswith("Name:" + name)
        assert state.meta("name")["finish_reason"] == reason
        assert state.messages()[-1]["content"] == "Name:" + name
    ((_, body),) = seen
    # The begun text is written again, and a token is at least a byte.
    assert body["max_tokens"] == 64 + len("Name:") and body["logprobs"] is True


def test_a_limit_holds_for_what_was_guessed_too() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s: sgl.State) -> None:
        s += sgl.user("A character, please.")
        s += sgl.assistant(
            "Name:"
            + sgl.gen("name", stop="\n")
            + "\nJob:"
            + sgl.gen("job", stop="\n", max_tokens=2)
        )

    answer: Answer = ["Name", ": Ada", "\nJob", ":", " wri", "ter", " of", " notes", "\n"]
    for stream in (False, True):
        with scripted(answer) as (url, seen), OpenAI("m", url) as backend:
            state = program.run(backend=backend, stream=stream)
            assert (state["name"], state["job"]) == (" Ada", " writer")
        assert len(seen) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_gen_at_the_start_of_a_message_leaves_a_guess_for_those_behind_it(stream: bool) -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s: sgl.State) -> None:
        s += sgl.user("Two words, please.")
        s += sgl.assistant(sgl.gen("one", max_tokens=2) + sgl.gen("two", max_tokens=2))

    with scripted(["abc", "def", " gh", "ijk", "lm"]) as (url, seen), OpenAI("m", url) as backend:
        state = program.run(backend=backend, stream=stream)
        assert (state["one"], state["two"]) == ("abcdef", " ghijk")
    assert len(seen) == 1


def test_a_server_that_takes_no_logprobs_is_asked_once_for_them() -> None:
    answers = ["Name: Ada\nJob: writer\n", "Name: Bob\nJob: cook\n"]

    @sgl.function(num_api_spec_tokens=64)
    def program(s: sgl.State) -> None:
        for turn in range(2):
            s += sgl.user("A character, please.")
            s += sgl.assistant("Name:" + sgl.gen(f"name{turn}", stop="\n"))

    with scripted(*answers, takes_logprobs=False) as (url, seen), OpenAI("m", url) as backend:
        state = program.run(backend=backend)
    assert (state["name0"], state["name1"]) == (" Ada", " Bob")
    assert [body.get("logprobs") for _, body in seen] == [True, None, None]


def test_where_no_tokens_are_listed_a_limit_that_must_cut_is_refused_with_what_is_missing() -> None:
    with scripted(COUNTESS, lists_tokens=False) as (url, seen), OpenAI("m", url) as backend:
        with pytest.raises(ProgramError, match="max_tokens=4.*logprobs of chat completions"):
            short.run(backend=backend)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("how", "told"),
    [({"n": 2}, "n=2"), ({"logprobs": 1}, "logprobs"), ({"type": list[bool]}, "json_schema")],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_begun_message_is_refused_with_what_the_gen_asks_for_beyond_a_text(
    how: dict[str, Any], told: str, stream: bool
) -> None:
    with scripted() as (url, seen), OpenAI("m", url) as backend:
        with pytest.raises(ProgramError, match=f"this one has {told}"):
            state = short.run(**how, backend=backend, stream=stream)
            state.text()
    assert not seen


def test_the_advice_for_a_begun_message_names_its_conditions() -> None:
    with scripted() as (url, _), OpenAI("m", url) as backend:
        with pytest.raises(ProgramError, match="num_api_spec_tokens.* gens of one text"):
            chat.run("Well, ", backend=backend)


def test_a_message_that_never_begins_so_is_an_error() -> None:
    ways: list[tuple[dict[str, Any], int]] = [({"temperature": 0.0}, 1), ({}, 4)]
    for how, num_tries in ways:
        with scripted(*["Sure!"] * num_tries) as (url, seen), OpenAI("m", url) as backend:
            with pytest.raises(ProgramError, match=f"'Name:' in {num_tries} tries.*'Sure!'"):
                character.run(backend=backend, **how)
        assert len(seen) == num_tries


@pytest.mark.parametrize("everywhere", [False, True])
def test_each_try_of_a_seeded_message_has_a_seed_of_its_own(everywhere: bool) -> None:
    extra = {"seed": 7} if everywhere else {}
    how: dict[str, Any] = {} if everywhere else {"seed": 7}
    with scripted("Sure!", "Sure!", "Name: Ada\nJob: cook\n") as (url, seen):
        with OpenAI("m", url, extra=extra) as backend:
            assert character.run(backend=backend, **how)["name"] == " Ada"
    assert [body["seed"] for _, body in seen] == [7, 8, 9]


def test_a_wrong_model_is_an_error_with_its_status(server_url: str) -> None:
    wrong = OpenAI("nope", f"{server_url}/v1", api_key="k")
    with wrong as backend, pytest.raises(ProgramError, match="404") as error:
        plain.run(backend=backend)
    assert isinstance(error.value.__cause__, sgl.BackendError)
    assert error.value.__cause__.status == 404
