"""The Hugging Face hub, as far as a pull needs it: what a repository holds, and one file of it.

`Hub` is the seam that tests replace. The library is imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..errors import ConfigError, ModelNotFound

CONNECT_SECONDS = 4.0


class HubUnreachable(Exception):
    """The hub gave no answer, or none that has to do with the question. Never leaves this folder."""


@dataclass(frozen=True, slots=True)
class Listing:
    """What a repository holds.

    Attributes:
        commit: the commit that was listed; files are fetched from exactly it.
        files: size in bytes of each file, by path.
    """

    commit: str
    files: dict[str, int]


class Hub(Protocol):
    """Where repositories of models are."""

    def listing(self, repo_id: str, revision: str | None) -> Listing:
        """What is in a repository.

        Raises:
            HubUnreachable: after a few seconds at most.
            ModelNotFound: there is no such repository or revision, or it is private.
            ConfigError: its licence has to be accepted first, or a token is needed.
        """

    def fetch(self, repo_id: str, commit: str, file: str, folder: Path) -> None:
        """Bring one file to `folder / file`, going on where a former attempt stopped.

        Raises:
            HubUnreachable: the connection broke and stayed broken.
            ConfigError: access is refused.
            OSError: it cannot be written.
        """


class HuggingFaceHub:
    """The hub, by its own library (which reads HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE)."""

    def listing(self, repo_id: str, revision: str | None) -> Listing:
        """As `Hub.listing`; gives up after a few seconds without an answer."""
        from huggingface_hub import HfApi

        with _translated_errors(repo_id):
            info = HfApi().model_info(
                repo_id, revision=revision, files_metadata=True, timeout=CONNECT_SECONDS
            )
            siblings = info.siblings or []
            return Listing(
                info.sha or "main", {file.rfilename: file.size or 0 for file in siblings}
            )

    def fetch(self, repo_id: str, commit: str, file: str, folder: Path) -> None:
        """As `Hub.fetch`; resumes from what lies in the folder."""
        from huggingface_hub import hf_hub_download

        with _translated_errors(repo_id), _no_progress_bars():
            hf_hub_download(
                repo_id, file, revision=commit, local_dir=folder, etag_timeout=CONNECT_SECONDS
            )


@contextmanager
def _translated_errors(repo_id: str) -> Iterator[None]:
    from huggingface_hub import errors
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    try:
        yield
    except errors.GatedRepoError as error:
        raise ConfigError(
            f"Access to {repo_id} has to be granted by its owner first.",
            hint="Accept its licence on its page on the hub, then log in with `hf auth login`.",
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise ModelNotFound(
            f"The hub has no model {repo_id!r} (or it is private).",
            param="model",
            hint="Check the spelling; for a private model, log in with `hf auth login`.",
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        if status in (401, 403):
            raise ConfigError(
                f"The hub refused access to {repo_id} (HTTP {status}).",
                hint="Log in with `hf auth login`.",
            ) from error
        raise HubUnreachable(f"the hub answered HTTP {status}") from error
    except (HTTPError, errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        raise HubUnreachable(_first_line(error)) from error
    except ConnectionError as error:
        raise HubUnreachable(_first_line(error)) from error


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
