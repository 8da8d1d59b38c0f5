"""A Hugging Face dataset at a pinned revision, or a local mirror of it: which files it consists of, and opening them.

Here: resolving configuration and split to files, access errors in plain words. Not here: reading rows: files are
streamed as they are, never through Arrow, which would unite the keys of nested objects across rows and so change tool
specs (huggingface/datasets#7617). No code from a repository is ever run: `datasets` 4 and later can't.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

HubErrorKind = Literal["no_access", "not_found", "offline", "bad_mirror"]


class HubError(Exception):
    """A repository that can't be read. `kind` says why, `todo` what to do about it."""

    def __init__(self, kind: HubErrorKind, message: str, todo: str) -> None:
        super().__init__(message)
        self.kind: HubErrorKind = kind
        self.todo = todo


@dataclass(frozen=True, slots=True)
class HubFile:
    """One data file of a repository."""

    name: str
    """Path within the repository."""
    open: Callable[[], Any]
    """Opens it for reading bytes, seekable; opening and reading raise HubError when the hub refuses or can't be reached."""


def dataset_files(repo: str, revision: str, config: str | None, split: str) -> list[HubFile]:
    """Data files of a dataset repository at a commit, streamed when opened; uses the token of `HF_TOKEN` or `hf auth login`.

    Raises HubError: no_access (401, 403, gated), not_found (repository, revision, config, split), offline.
    """
    with _plain_errors(repo):
        import datasets

        try:
            builder = datasets.load_dataset_builder(repo, name=config, revision=revision)
        except FileNotFoundError as error:
            if type(error) is FileNotFoundError:
                # So `datasets` hides whatever kept it from the repository's first file: ask the hub itself, which says why.
                from huggingface_hub import HfApi

                HfApi().dataset_info(repo, revision=revision)
            raise
    return [HubFile(_within(url), lambda url=url: _open_remote(repo, url)) for url in _split_files(builder, repo, split)]


def resolve_revision(kind: Literal["dataset", "model"], repo: str) -> str:
    """The current commit (40 hex digits) of a repository's main branch. Raises HubError."""
    with _plain_errors(repo):
        from huggingface_hub import HfApi

        api = HfApi()
        info = api.dataset_info(repo) if kind == "dataset" else api.model_info(repo)
    if info.sha is None:
        raise HubError("not_found", f"the hub names no commit of {repo}", "give the revision by hand")
    return info.sha


def mirror_files(folder: Path, config: str | None, split: str) -> list[Path]:
    """Data files of a mirrored repository: as its README's `configs` say, else by the hub's naming rules.

    Raises HubError: bad_mirror (no such folder), not_found (config, split).
    """
    if not folder.is_dir():
        raise HubError("bad_mirror", f"there is no folder {folder}", "copy the repository's files there, or leave `mirror` out")
    with _plain_errors(str(folder)):
        import datasets

        builder = datasets.load_dataset_builder(str(folder), name=config)
    return [Path(path) for path in _split_files(builder, str(folder), split)]


def _split_files(builder: Any, repo: str, split: str) -> list[str]:
    found = builder.config.data_files or {}
    if split not in found:
        raise HubError("not_found", f"{repo} has no split {split!r}", f"its splits are {', '.join(map(str, found)) or 'unknown'}")
    return [str(path) for path in found[split]]


def _within(url: str) -> str:
    """hf://datasets/owner/name@revision/path -> path."""
    return url.split("@", 1)[-1].split("/", 1)[-1]


def _open_remote(repo: str, url: str) -> Any:
    with _plain_errors(repo):
        from huggingface_hub import HfFileSystem

        return _Stream(HfFileSystem().open(url, "rb"), repo)


class _Stream(io.RawIOBase):
    """A file of a repository, fetched as it is read: access may end, and the connection be lost, at any byte."""

    def __init__(self, file: Any, repo: str) -> None:
        self._file, self._repo = file, repo

    def read(self, size: int | None = -1) -> bytes:
        try:
            return self._file.read(-1 if size is None else size)
        except _unreachable() as error:
            with _plain_errors(self._repo):
                raise error

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _unreachable() -> tuple[type[BaseException], ...]:
    """What is raised when the hub refuses or can't be reached."""
    from huggingface_hub import errors

    # The HTTP client's own base error: huggingface_hub changed clients twice (requests, httpx, httpx2), its errors name the one in use.
    client_error = next(base for base in errors.HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")
    return ConnectionError, client_error


@contextmanager
def _plain_errors(repo: str) -> Iterator[None]:
    """HubError for every way in which `datasets` and `huggingface_hub` say that a repository can't be had."""
    from datasets.data_files import EmptyDatasetError
    from datasets.exceptions import DataFilesNotFoundError, DatasetNotFoundError
    from huggingface_hub import errors

    login = f"ask for access on https://huggingface.co/datasets/{repo}, then run `hf auth login` or set HF_TOKEN"
    check = f"check repository and revision; if it is private, {login}"
    offline = "connect this machine, or give `mirror` a folder with a copy of the repository's files"
    try:
        yield
    except errors.GatedRepoError as error:
        raise HubError("no_access", f"{repo} is gated and this account has no access to it", login) from error
    except DatasetNotFoundError as error:
        text = str(error)
        if "gated" in text.lower():
            raise HubError("no_access", f"{repo} is gated and this account has no access to it", login) from error
        raise HubError("not_found", f"{repo} doesn't exist at this revision or isn't accessible", check) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        if isinstance(error, errors.LocalEntryNotFoundError):
            raise HubError("offline", f"the hub can't be reached for {repo}", offline) from error
        raise HubError("not_found", f"{repo}: {type(error).__name__}", check) from error
    except errors.HfHubHTTPError as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise HubError("no_access", f"the hub answered {status} for {repo}", login) from error
        raise HubError("offline", f"the hub answered {status} for {repo}", "try again later, or use a `mirror`") from error
    except _unreachable() as error:
        raise HubError("offline", f"the hub can't be reached for {repo}", offline) from error
    except (EmptyDatasetError, DataFilesNotFoundError, FileNotFoundError) as error:
        raise HubError("not_found", f"{repo} holds no data files", "check that the copy or the repository is complete") from error
    except ValueError as error:  # an unknown or missing config: the message lists those that exist
        raise HubError("not_found", f"{repo}: {error}", "set `config` of the source to one of them") from error
