"""The package's own names."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ramet.runtime


def test_importing_the_package_loads_no_heavy_module() -> None:
    code = (
        "import sys, ramet.runtime\n"
        "heavy = {'torch', 'transformers', 'numpy', 'fastapi'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ramet.runtime.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(ramet.runtime, name).__doc__
    assert name in dir(ramet.runtime)


def test_an_unknown_name_raises() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        _ = ramet.runtime.Motor
