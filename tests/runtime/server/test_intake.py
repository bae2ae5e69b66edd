"""Namespaces are a function of key and salt, and of nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.server.intake import namespace

SALTS = st.none() | st.text(min_size=1)


def test_no_key_and_no_salt_is_the_common_namespace() -> None:
    assert namespace("", None) == ""


@given(st.tuples(st.text(), SALTS), st.tuples(st.text(), SALTS))
def test_different_pairs_have_different_namespaces(
    one: tuple[str, str | None], other: tuple[str, str | None]
) -> None:
    assert (namespace(*one) == namespace(*other)) == (one == other)
