"""Recipe section `sources`: which prompt datasets are read, in which format, and how much of each is taken.

Here: location, format, labels and amount of each source. Not here: the readers (`dflash_assets.sources`) and the
options only one reader knows: they stay in `options` and are checked by that reader's own model.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from dflash_assets.recipe.base import Category, RecipeModel, Revision, Share, Slug


class HubLocation(RecipeModel):
    """A dataset repository on the Hugging Face hub at one commit."""

    repo: str | None = None
    """Repository id, e.g. `meta-math/MetaMathQA`. null: not known yet; `plan` then says what to fill in."""
    revision: Revision | None = None
    """Commit of the dataset repository. Left out: `dflash-assets pin RECIPE` resolves and writes it."""
    config: str | None = None
    """Configuration (subset) of the dataset; null takes its default one."""
    split: str = "train"
    """Split to read."""
    mirror: str | None = None
    """Folder with a copy of the repository's files, read instead of the hub (for machines without internet)."""


class CategoryLabels(RecipeModel):
    """How a row's own label becomes one of the product's categories."""

    default: Category = "unknown"
    """Category of rows whose label is absent from `map`."""
    column: str | None = None
    """Column that holds the label; a dotted path reaches into a struct, and of a list the first known label counts."""
    map: dict[str, Category] = Field(default_factory=dict)
    """Label to category."""


class TakeShare(RecipeModel):
    """Take a share of the blend."""

    share: Share
    """Part of `blend.max_prompts`, 0 to 1."""


class TakeTokens(RecipeModel):
    """Take rows until a budget of prompt tokens is used up."""

    tokens: PositiveInt
    """Prompt tokens, counted by the target tokenizer with its chat template."""


Take = PositiveInt | Literal["all", "remainder"] | TakeShare | TakeTokens


class SourceSpec(RecipeModel):
    """One prompt dataset."""

    name: Slug
    """Name of the source; also its asset key and file name."""
    format: str
    """Reader: sharegpt, question_answer, metamathqa, hermes, agent, http or wildclaw, or an import path `package.module:Reader` of your own."""
    path: str | None = None
    """File, folder or glob (JSONL, JSON array or Parquet; gzip or zstd), relative to the recipe's folder. Give this or `hub`."""
    hub: HubLocation | None = None
    """Dataset repository on the hub. Give this or `path`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the reader, e.g. column names; each reader documents its own and refuses unknown ones."""
    replay: Literal["last_turn", "conversation"] = "last_turn"
    """What of a conversation the model answers: `last_turn` (its last turn, on the recorded history) or `conversation` (every assistant
    turn, on the model's own history; recorded user turns and tool results are replayed, recorded answers never shown)."""
    category: CategoryLabels = CategoryLabels()
    """How the category of a row is found."""
    take: Take = "all"
    """How much to take: a number of rows, `all`, `remainder` (what is left to `blend.max_prompts`), `{share: 0.2}` or `{tokens: 1000000}`."""
    max_rows_read: PositiveInt | None = None
    """Stop reading after this many rows (for trials); null reads all."""
    redaction: Literal["strict", "light"] = "light"
    """`strict` (HTTP logs): also phone numbers, IPs and home directories; `light`: keys, tokens, e-mail and card numbers."""
    max_rejected_share: Share = 0.5
    """The source's asset check fails when a larger share of its rows is rejected."""
    licence: str | None = None
    """Licence of the dataset, carried into the dataset card."""

    @model_validator(mode="after")
    def _one_location(self) -> Self:
        if (self.path is None) == (self.hub is None):
            raise ValueError("give exactly one of `path` and `hub`")
        return self
