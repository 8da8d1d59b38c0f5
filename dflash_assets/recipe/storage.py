"""Recipe section `storage`: how a store in a bucket uses this machine.

Here: the working copy's place and size, the journal's copies. Not here: where the store is (`recipe.store`), and never a
credential: those come the standard way (environment, profile, instance role).
"""

from __future__ import annotations

from pydantic import Field, PositiveFloat

from dflash_assets.recipe.base import RecipeModel


class StorageSpec(RecipeModel):
    """How a store in a bucket uses this machine; a store in a folder ignores it."""

    work: str | None = Field(default=None, min_length=1)
    """Folder of the working copy: the journal, files on their way up, fetched ones. Default `data/<name>.working`, relative to the
    working directory; on a disk that survives a restart."""
    disk_gib: PositiveFloat = 50.0
    """GiB the working copy may take. Files that are in the bucket make room; when what still waits for upload is this much, no
    new shard is begun until the bucket has caught up."""
    mirror_journal: bool = True
    """Copy the journal to the bucket as it grows, so that a lost machine costs the answers of half a minute instead of every
    unfinished shard."""
