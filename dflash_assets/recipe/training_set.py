"""Recipe sections `training_set` and `exports`: merging with an existing set, and what trainers read.

Here: what is merged, kept, split and written. Not here: the work (`dflash_assets.training_set`).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from dflash_assets.recipe.base import RecipeModel, Share


class ExistingSet(RecipeModel):
    """A training set made earlier, read and never written to."""

    path: str
    """Parquet file or folder, `save_to_disk` folder, or JSONL file; relative to the recipe's folder, or `s3://`."""
    format: Literal["parquet", "arrow", "jsonl"] = "parquet"
    """How it is stored."""
    input_ids: str = "input_ids"
    """Column of the token ids."""
    loss_mask: str = "loss_mask"
    """Column of the loss mask."""
    id: str | None = "id"
    """Column of the row's id; null derives one from the content."""
    source: str | None = "source"
    """Column that says where a row came from; absent or null: `existing`."""
    messages: str | None = None
    """Column of conversations, for a set of text: {role, content} messages or ShareGPT turns, also as JSON text. Ids and masks are
    then made with the run's tokenizer, one row for each assistant turn; `input_ids` and `loss_mask` are not read."""
    tools: str | None = None
    """Column of tool specifications beside `messages`, a list or JSON text."""
    tokenizer_sha: str | None = None
    """Fingerprint of the tokenizer it was made with; null takes the one its manifest.json names, if there is one."""


class TrainingSetSpec(RecipeModel):
    """The merged training set."""

    existing: ExistingSet | None = None
    """Set to merge with; null writes the new rows only."""
    max_length: PositiveInt
    """Tokens of a row at most; longer rows are dropped and counted."""
    min_supervised_tokens: NonNegativeInt = 2
    """Rows with fewer supervised tokens are dropped and counted (SpecForge's DFlash needs 2, TorchSpec's 32)."""
    forbidden_ids: tuple[NonNegativeInt, ...] = ()
    """Token ids no row may hold, e.g. the drafter's mask token."""
    eval_share: Share = 0.01
    """Share of prompts kept for evaluation, chosen by a hash of the prompt, so that it is stable as the set grows."""
    duplicates: Literal["newer", "longer", "both"] = "newer"
    """Rows of the existing set with the same prompt as a new row: keep the `newer`, the `longer` answer, or `both`."""
    incomplete: Literal["wait", "take_validated"] = "wait"
    """When shards are missing or red: `wait` (stop and say which) or `take_validated` (go on and say which)."""
    rows_per_file: PositiveInt = 20000
    """Rows of one Parquet file of the training set."""


class ExportSpec(RecipeModel):
    """One format for one trainer."""

    kind: str
    """Export: `tokens-jsonl`, `speculators-arrow`, ...; or an import path `package.module:Export` of your own."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the export; each one documents its own and refuses unknown ones."""
