"""Recipe sections `training_set` and `exports`: merging with an existing set, and what trainers read.

Here: what is merged, kept, split and written. Not here: the work (`dflash_assets.training_set`).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

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


class TrainerMemory(RecipeModel):
    """The trainer the set is meant for: what its longest rows cost there. Used for the forecast, and by `limits.memory_gib`."""

    max_length: PositiveInt | None = None
    """Tokens at which the trainer cuts rows, and the size of a pack; null takes `training_set.max_length`."""
    micro_batch: PositiveInt = 1
    """Rows (or packs) a GPU works on at a time."""
    packing: bool = False
    """Rows are put one after another into packs of `max_length`; false pads each row to the longest of its micro batch."""
    logits_copies: PositiveInt = 3
    """Tensors of tokens x vocabulary held at a time, of two bytes a value: logits of target and drafter, and a gradient."""
    hidden_size: PositiveInt | None = None
    """Hidden size of the target model; null leaves hidden states out of the forecast."""
    captured_layers: PositiveInt = 5
    """Layers of the target whose hidden states the drafter reads, of two bytes a value."""


class DriftLimits(RecipeModel):
    """Limits that stop the merge. null: only a warning in the report. A stopped merge leaves the earlier set, and costs no GPU again."""

    length_ratio: PositiveFloat | None = None
    """99th percentile of the new rows' length over that of the existing rows, at most."""
    longest_ratio: PositiveFloat | None = None
    """Longest new row over the longest existing row, at most."""
    share_shift: Share | None = None
    """Change of a mode's or of the tool calls' share of rows between the two sets, at most."""
    supervised_shift: Share | None = None
    """Change of the supervised share of tokens, at most."""
    vocabulary_overlap: Share | None = None
    """Shared probability mass of the supervised ids of both sets, at least: 1 is equal, 0 disjoint."""
    memory_gib: PositiveFloat | None = None
    """Memory of logits and hidden states of the largest micro batch on one GPU, at most (see `trainer`)."""


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
    trainer: TrainerMemory = TrainerMemory()
    """The trainer whose memory is forecast."""
    limits: DriftLimits = DriftLimits()
    """Drift between new and existing rows that stops the merge."""


class ExportSpec(RecipeModel):
    """One format for one trainer."""

    kind: str
    """Export: `tokens-jsonl`, `speculators-arrow`, ...; or an import path `package.module:Export` of your own."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the export; each one documents its own and refuses unknown ones."""
