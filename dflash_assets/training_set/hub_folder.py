"""An export as a folder ready for a dataset repository on the Hugging Face hub, and the upload when it is asked for.

Here: which exports the hub's viewer can read, what goes beside their files, the upload. Not here: the export itself (`exports`).
The folder is the export with its card; nothing of it names this machine. Uploading needs a login (`hf auth login`, or HF_TOKEN).
"""

from __future__ import annotations

import shutil
from pathlib import Path

from dflash_assets.errors import TrainingSetError
from dflash_assets.tables import write_text

_ATTRIBUTES = "".join(f"*.{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in ("arrow", "parquet", "jsonl", "npy", "pt"))


def prepare(export: Path, folder: Path) -> list[str]:
    """Copy a finished export into `folder` with a .gitattributes for large files; the files' names. A folder that holds the same
    export already is left as it is.

    Raises TrainingSetError when the folder holds something else.
    """
    manifest = folder / "manifest.json"
    same = manifest.is_file() and manifest.read_bytes() == (export / "manifest.json").read_bytes()
    if not same and folder.exists() and any(folder.iterdir()):
        raise TrainingSetError("the folder isn't empty", where=str(folder), todo="name a new one; nothing of yours is overwritten")
    if not same:
        shutil.copytree(export, folder, dirs_exist_ok=True)
    write_text(folder / ".gitattributes", _ATTRIBUTES)
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def push(folder: Path, repo: str, *, private: bool, message: str) -> str:
    """Upload the folder as dataset repository `repo` (`owner/name`), made when it doesn't exist; the URL of the commit.

    Raises TrainingSetError without credentials, for a repository that can't be written, and when the hub can't be reached.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if get_token() is None:
        raise TrainingSetError(
            "no login for the Hugging Face hub", where=repo, todo="run `hf auth login`, or set HF_TOKEN; the folder is ready and stays"
        )
    api = HfApi()
    try:
        api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
        done = api.upload_folder(folder_path=folder, repo_id=repo, repo_type="dataset", commit_message=message)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise TrainingSetError(
            f"the upload failed: {str(error).splitlines()[0]}", where=repo, todo="check name and rights of the repository, and try again"
        ) from error
    return str(done.commit_url)
