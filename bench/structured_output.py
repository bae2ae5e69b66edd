"""Which library should hold a model to a grammar? What each one gets right, and what it costs.

    python bench/structured_output.py --tokenizer tokenizer.json --suite draft2020-12.json \
        --bfcl BFCL_v4_multiple.json BFCL_v4_multiple_answers.json

Every schema is compiled, and the texts of its instances are fed to the grammar token by token. A schema is

    right     every valid instance was accepted and every other one refused
    narrow    nothing invalid was accepted, but some valid instance was refused
    wrong     something invalid was accepted
    refused   the library said that it cannot compile the schema
    failed    it crashed, hung or ran into the time limit

Each library works in a process of its own, restarted when it fails. Libraries that are not installed are
left out. It knows nothing of the server: it is what the choice of the server's library rests on.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

VERDICTS = ("right", "narrow", "wrong", "refused", "failed")


class Matcher(Protocol):
    """One text on its way through one grammar."""

    def mask(self) -> None:
        """Compute which tokens may come next."""

    def accept(self, token_id: int) -> bool:
        """Take a token; False if the grammar refuses it."""

    def may_end(self) -> bool:
        """Whether the text may end here."""


Compile = Callable[[Any], Callable[[], Matcher]]
"""From a schema to a maker of matchers; raises if the library refuses the schema."""


@dataclass(frozen=True, slots=True)
class Case:
    """A schema with instances of it: (instance, whether it is valid)."""

    schema: Any
    instances: list[tuple[Any, bool]]


@dataclass(slots=True)
class Result:
    """What one library made of one schema; times in milliseconds."""

    verdict: str
    compile_ms: float = 0.0
    mask_ms: list[float] = field(default_factory=list)
    detail: str = ""


def llguidance_compiler(tokenizer_json: str, eos_id: int) -> Compile:
    """Grammars of llguidance, with its own defaults."""
    import llguidance
    import llguidance.numpy
    import numpy as np

    tokenizer = llguidance.LLTokenizer(tokenizer_json, eos_token=eos_id)

    class LlguidanceMatcher:
        def __init__(self, matcher: Any) -> None:
            self._matcher = matcher
            self._bits: Any = np.zeros((1, -(-tokenizer.vocab_size // 32)), dtype=np.int32)

        def mask(self) -> None:
            llguidance.numpy.fill_next_token_bitmask(self._matcher, self._bits)

        def accept(self, token_id: int) -> bool:
            return bool(self._matcher.try_consume_tokens([token_id]))

        def may_end(self) -> bool:
            return bool(self._matcher.is_accepting())

    def compile_schema(schema: Any) -> Callable[[], Matcher]:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
        first = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
        if first.is_error():
            raise ValueError(first.get_error())
        return lambda: LlguidanceMatcher(first.deep_copy())

    return compile_schema


def xgrammar_compiler(tokenizer_json: str, eos_id: int) -> Compile:
    """Grammars of xgrammar; open objects, as the standard has them."""
    import tokenizers

    xgrammar = import_module("xgrammar")

    fast = tokenizers.Tokenizer.from_str(tokenizer_json)
    vocabulary = [fast.id_to_token(i) or "" for i in range(fast.get_vocab_size())]
    info = xgrammar.TokenizerInfo(
        vocabulary, vocab_type=xgrammar.VocabType.BYTE_LEVEL, stop_token_ids=[eos_id]
    )
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    bits = xgrammar.allocate_token_bitmask(1, info.vocab_size)

    class XgrammarMatcher:
        def __init__(self, compiled: Any) -> None:
            self._matcher = xgrammar.GrammarMatcher(compiled)

        def mask(self) -> None:
            self._matcher.fill_next_token_bitmask(bits)

        def accept(self, token_id: int) -> bool:
            return bool(self._matcher.accept_token(token_id))

        def may_end(self) -> bool:
            return bool(self._matcher.accept_token(eos_id))

    def compile_schema(schema: Any) -> Callable[[], Matcher]:
        compiled = compiler.compile_json_schema(json.dumps(schema), strict_mode=False)
        return lambda: XgrammarMatcher(compiled)

    return compile_schema


def outlines_compiler(tokenizer_json: str, eos_id: int) -> Compile:
    """Indexes of outlines-core: schema to regular expression to a table over the vocabulary."""
    outlines_core = import_module("outlines_core")
    import tokenizers

    fast = tokenizers.Tokenizer.from_str(tokenizer_json)
    entries: dict[bytes, list[int]] = {}
    for token_id in range(fast.get_vocab_size()):
        data = _token_bytes(fast.id_to_token(token_id) or "")
        if data and token_id != eos_id:
            entries.setdefault(data, []).append(token_id)
    vocabulary = outlines_core.Vocabulary(eos_id, entries)

    class OutlinesMatcher:
        def __init__(self, index: Any) -> None:
            self._guide = outlines_core.Guide(index)

        def mask(self) -> None:
            self._guide.get_tokens()

        def accept(self, token_id: int) -> bool:
            if token_id not in self._guide.get_tokens():
                return False
            self._guide.advance(token_id)
            return True

        def may_end(self) -> bool:
            return bool(self._guide.is_finished()) or eos_id in self._guide.get_tokens()

    def compile_schema(schema: Any) -> Callable[[], Matcher]:
        regex = outlines_core.json_schema.build_regex_from_schema(json.dumps(schema))
        index = outlines_core.Index(regex, vocabulary)
        return lambda: OutlinesMatcher(index)

    return compile_schema


LIBRARIES: dict[str, Callable[[str, int], Compile]] = {
    "llguidance": llguidance_compiler,
    "xgrammar": xgrammar_compiler,
    "outlines_core": outlines_compiler,
}


def _token_bytes(token: str) -> bytes:
    """Bytes of a byte-level token (GPT-2's alphabet)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet |= {chr(0x100 + index): byte for index, byte in enumerate(others)}
    if all(character in alphabet for character in token):
        return bytes([alphabet[character] for character in token])
    return token.encode()


def judge(
    case: Case, compile_schema: Compile, encode: Callable[[str], list[int]], *, masks: bool
) -> Result:
    """Compile one schema and try its instances."""
    started = time.perf_counter()
    try:
        make = compile_schema(case.schema)
    except Exception as error:
        return Result("refused", detail=f"{type(error).__name__}: {error}"[:200])
    result = Result("right", (time.perf_counter() - started) * 1000)
    for instance, valid in case.instances:
        accepted = _accepts(make(), encode(_text(instance, case.schema)), result, masks)
        if accepted and not valid:
            result.verdict, result.detail = "wrong", json.dumps(instance)[:200]
        elif valid and not accepted and result.verdict == "right":
            result.verdict, result.detail = "narrow", json.dumps(instance)[:200]
    return result


def _accepts(matcher: Matcher, token_ids: list[int], result: Result, masks: bool) -> bool:
    for token_id in token_ids:
        if masks:
            started = time.perf_counter()
            matcher.mask()
            result.mask_ms.append((time.perf_counter() - started) * 1000)
        if not matcher.accept(token_id):
            return False
    return matcher.may_end()


def _text(instance: Any, schema: Any) -> str:
    return json.dumps(_ordered(instance, schema), ensure_ascii=False)


def _ordered(instance: Any, schema: Any) -> Any:
    """The instance with its members in the schema's order: the only order that grammars take."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if isinstance(instance, dict):
        properties = properties if isinstance(properties, dict) else {}
        names = [*(n for n in properties if n in instance), *(n for n in instance)]
        return {
            name: _ordered(instance[name], properties.get(name)) for name in dict.fromkeys(names)
        }
    if isinstance(instance, list):
        items = schema.get("items") if isinstance(schema, dict) else None
        return [_ordered(item, items) for item in instance]
    return instance


def suite_cases(path: Path) -> Iterator[Case]:
    """The cases of a merged JSON-Schema-Test-Suite file: {file: [{schema, tests}]}."""
    for groups in json.loads(path.read_text()).values():
        for group in groups:
            yield Case(group["schema"], [(t["data"], t["valid"]) for t in group["tests"]])


_BFCL_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


def bfcl_cases(questions: Path, answers: Path) -> Iterator[Case]:
    """Parameters of every function, with the first listed answer where the schema allows it."""
    import jsonschema  # type: ignore[import-untyped]

    truths = [json.loads(line)["ground_truth"] for line in answers.read_text().splitlines()]
    for line, truth in zip(questions.read_text().splitlines(), truths, strict=True):
        for function in json.loads(line)["function"]:
            schema = _bfcl_schema(function["parameters"])
            instances = []
            for call in truth:
                values = call.get(function["name"])
                if values is not None:
                    instance = {k: v[0] for k, v in values.items() if v and v[0] != ""}
                    valid = jsonschema.Draft202012Validator(schema).is_valid(instance)
                    instances.append((instance, valid))
            yield Case(schema, instances)


def _bfcl_schema(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "type":
            if value != "any":
                kept[key] = _BFCL_TYPES.get(value, value)
        elif key == "properties":
            kept[key] = {name: _bfcl_schema(child) for name, child in value.items()}
        elif key == "items":
            kept[key] = _bfcl_schema(value)
        elif key in ("required", "enum"):
            kept[key] = value
    return kept


def _work(name: str, tokenizer_json: str, eos_id: int, connection: Connection) -> None:
    import tokenizers

    resource.setrlimit(resource.RLIMIT_AS, (16 * 1024**3, 16 * 1024**3))
    fast = tokenizers.Tokenizer.from_str(tokenizer_json)
    compile_schema = LIBRARIES[name](tokenizer_json, eos_id)
    connection.send(None)
    while True:
        case, masks = connection.recv()
        encode = lambda text: fast.encode(text, add_special_tokens=False).ids  # noqa: E731
        connection.send(judge(case, compile_schema, encode, masks=masks))


class Worker:
    """One library in a process of its own, which is started again after a failure."""

    def __init__(self, name: str, tokenizer_json: str, eos_id: int) -> None:
        self._arguments = (name, tokenizer_json, eos_id)
        self._process: multiprocessing.process.BaseProcess | None = None

    def judge(self, case: Case, *, masks: bool, limit: float) -> Result:
        """The library's result for one case, or "failed" after `limit` seconds."""
        if self._process is None:
            self._start()
        self._connection.send((case, masks))
        try:
            if self._connection.poll(limit):
                result: Result = self._connection.recv()
                return result
            detail = f"no answer in {limit:g} s"
        except EOFError:
            detail = "the process died"
        self.stop()
        return Result("failed", detail=detail)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_work, args=(*self._arguments, other), daemon=True)
        self._process.start()
        other.close()
        self._connection.recv()

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def report(name: str, what: str, results: list[Result]) -> str:
    """One row of the table."""
    counts = Counter(result.verdict for result in results)
    compiled = sorted(r.compile_ms for r in results if r.verdict in ("right", "narrow", "wrong"))
    masks = sorted(ms for result in results for ms in result.mask_ms)
    cells = [name, what, *(str(counts[verdict]) for verdict in VERDICTS)]
    for times in (compiled, masks):
        if times:
            p99 = times[int(len(times) * 0.99)]
            cells.append(f"{statistics.median(times):.3g} / {p99:.3g} / {times[-1]:.3g}")
        else:
            cells.append("-")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Read the arguments, run every library that is installed, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--tokenizer", type=Path, required=True, help="a tokenizer.json, byte-level"
    )
    parser.add_argument("--eos", default="<|im_end|>", help="its end token")
    parser.add_argument("--suite", type=Path, nargs="*", default=[], help="merged test suite files")
    parser.add_argument("--bfcl", type=Path, nargs=2, help="questions and answers, JSON lines")
    parser.add_argument("--library", nargs="*", default=list(LIBRARIES), choices=list(LIBRARIES))
    parser.add_argument("--every", type=int, default=1, help="take every n-th schema only")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds per schema")
    parser.add_argument("--details", type=Path, help="write every result there, as JSON lines")
    arguments = parser.parse_args()

    import tokenizers

    tokenizer_json = arguments.tokenizer.read_text()
    eos_id = tokenizers.Tokenizer.from_str(tokenizer_json).token_to_id(arguments.eos)
    if eos_id is None:
        parser.error(f"the tokenizer has no token {arguments.eos!r}")
    data = [(path.stem, list(suite_cases(path)), False) for path in arguments.suite]
    if arguments.bfcl:
        data.append(("BFCL", list(bfcl_cases(*arguments.bfcl)), True))
    print(f"| library | schemas | {' | '.join(VERDICTS)} | compile, ms | mask, ms |")
    print("|---" * (len(VERDICTS) + 4) + "|")
    for name in arguments.library:
        if find_spec(name) is None:
            continue
        worker = Worker(name, tokenizer_json, eos_id)
        for what, cases, masks in data:
            chosen = cases[:: arguments.every]
            results = [worker.judge(case, masks=masks, limit=arguments.limit) for case in chosen]
            print(report(name, f"{what} ({len(chosen)})", results), flush=True)
            if arguments.details:
                with arguments.details.open("a") as file:
                    for case, result in zip(chosen, results, strict=True):
                        row = [name, what, result.verdict, result.detail, case.schema]
                        file.write(json.dumps(row) + "\n")
        worker.stop()


if __name__ == "__main__":
    main()
