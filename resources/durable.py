"""Files that survive a crash: fsync, rename, fsync of the folder; and the hash that proves what was written.

Here: the primitives every writer uses. Not here: what is written (`dflash_assets.tables`) and where (`store.py`).
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes, hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def fsync_file(path: Path) -> None:
    """Make a file's content durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def publish(temporary: Path, final: Path) -> None:
    """fsync a finished temporary file, rename it to its name, fsync the folder: after this it survives a crash."""
    fsync_file(temporary)
    temporary.replace(final)
    fsync_folder(final.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    publish(temporary, path)
