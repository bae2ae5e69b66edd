"""A vocabulary of single bytes and some longer tokens, and grammars compiled for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from ramet.runtime.sources.base import TokenizerFiles
from ramet.runtime.structured.constraint import Constraint
from ramet.runtime.structured.grammar import Grammar, Vocabulary
from ramet.runtime.structured.service import GrammarService
from ramet.runtime.structured.translate import translate
from ramet.runtime.text.tokenizer import Tokenizer

SPECIAL = ("<|end|>", "<|pad|>")
MERGES = [("t", "r"), ("tr", "u"), ("tru", "e"), ("a", "b"), ('"', ":"), ("}", "}"), ("0", "0")]
NUM_UNUSED = 5


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """The bytes, the merges, then the special tokens, of which the first ends a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    texts = [*alphabet, *("".join(pair) for pair in MERGES)]
    fast = FastTokenizer(models.BPE({text: i for i, text in enumerate(texts)}, MERGES))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    ids = frozenset(range(len(texts), len(texts) + len(SPECIAL)))
    return Tokenizer(TokenizerFiles(fast, {"eos_token": SPECIAL[0]}, None, ids))


@pytest.fixture(scope="session")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """The tokenizer's tokens, and a few ids that are none."""
    end = tokenizer.eos_token_id
    assert end is not None
    return Vocabulary(tokenizer, tokenizer.vocab_size + NUM_UNUSED, (end,))


@pytest.fixture(scope="session")
def grammar(vocabulary: Vocabulary) -> Callable[[Constraint], Grammar]:
    """Compiles a constraint at once, in this process."""

    def compile_now(constraint: Constraint) -> Grammar:
        return Grammar(constraint, translate(constraint), vocabulary)

    return compile_now


@pytest.fixture
def service(vocabulary: Vocabulary) -> Iterator[GrammarService]:
    """A service that remembers three grammars."""
    service = GrammarService(lambda: vocabulary, max_grammars=3)
    yield service
    service.close()
