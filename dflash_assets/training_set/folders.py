"""Putting a finished folder in place of an older one.

Here: the rename of whole folders. Not here: single files (`dflash_assets.tables.publish`) and the store.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from dflash_assets.tables import fsync_folder


def publish_folder(new: Path, final: Path) -> None:
    """Rename `new` to `final`; an older `final` is removed only after that. Both on one file system, files already synced."""
    old = final.with_name(final.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    fsync_folder(new)
    if final.exists():
        final.replace(old)
    new.replace(final)
    fsync_folder(final.parent)
    shutil.rmtree(old, ignore_errors=True)
