"""The recipe: one YAML file that says everything about one training set.

Here: the top of the model tree and the checks that need more than one section. Not here: reading YAML (`load.py`),
hashing (`fingerprint.py`), and facts that only a look at the data can tell (`dflash-assets plan`).
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dflash_assets.recipe.base import RecipeModel, Slug
from dflash_assets.recipe.blend import BlendSpec
from dflash_assets.recipe.generation import GenerationSpec
from dflash_assets.recipe.model import TargetModel
from dflash_assets.recipe.pods import PodsSpec
from dflash_assets.recipe.sources import SourceSpec
from dflash_assets.recipe.storage import StorageSpec
from dflash_assets.recipe.training_set import ExportSpec, TrainingSetSpec
from dflash_assets.recipe.validation import ValidationSpec

OWNER = r"^(team:[A-Za-z0-9_-]+|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,})$"
"""What Dagster takes as an owner of an asset."""
CRON = r"^(@(hourly|daily|weekly|monthly|yearly)|([0-9*/,A-Za-z-]+ +){4}[0-9*/,A-Za-z-]+)$"
"""Minute, hour, day of the month, month, day of the week."""


class Recipe(RecipeModel):
    """One training set, from prompt datasets to trainer files."""

    version: Literal[1] = 1
    """Version of the recipe format."""
    name: Slug
    """Name of the recipe: prefix of every asset key and default folder of its data."""
    description: str = ""
    """What this training set is for, in a sentence."""
    owners: tuple[Annotated[str, Field(pattern=OWNER)], ...] = ()
    """Who answers for it: e-mail addresses or `team:NAME`. Shown on every asset; decides nothing."""
    schedule: Annotated[str, Field(pattern=CRON)] | None = None
    """Cron line (UTC) for a recipe whose sources grow: when the webserver reads them and blends anew, once that is switched on there."""
    seed: int = Field(default=0, ge=0)
    """Seed of every shuffle and choice."""
    store: str | None = None
    """Where the run's files go: a folder (default `data/<name>`, relative to the working directory) or `s3://bucket/prefix/`."""
    storage: StorageSpec = StorageSpec()
    """How a store in a bucket uses this machine."""
    pods: PodsSpec | None = None
    """What the pods of its runs ask of a Kubernetes cluster; null leaves all as the installation has it."""
    target_model: TargetModel
    """The model that answers."""
    sources: tuple[SourceSpec, ...] = Field(min_length=1)
    """Prompt datasets."""
    blend: BlendSpec
    """How the sources are mixed."""
    generation: GenerationSpec
    """How the prompts are answered."""
    validation: ValidationSpec = ValidationSpec()
    """How the answers are checked."""
    training_set: TrainingSetSpec
    """How the answers become a training set."""
    exports: tuple[ExportSpec, ...] = ()
    """What is written for trainers."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        repeated = [name for name, count in Counter(source.name for source in self.sources).items() if count > 1]
        if repeated:
            raise ValueError(f"two sources are named {repeated[0]!r}; names must differ")
        kinds = [kind for kind, count in Counter(export.kind for export in self.exports).items() if count > 1]
        if kinds:
            raise ValueError(f"export {kinds[0]!r} stands twice; the second would overwrite the first")
        if sum(source.take == "remainder" for source in self.sources) > 1:
            raise ValueError("only one source can take the remainder")
        if self.blend.against_existing and self.training_set.existing is None:
            raise ValueError("blend.against_existing needs training_set.existing: there is no set to compare with")
        room = self.target_model.context_length - self.blend.max_prompt_tokens
        if room < self.generation.sampling.max_tokens:
            raise ValueError(
                f"blend.max_prompt_tokens ({self.blend.max_prompt_tokens}) + generation.sampling.max_tokens "
                f"({self.generation.sampling.max_tokens}) exceed target_model.context_length ({self.target_model.context_length})"
            )
        return self

    @property
    def store_root(self) -> str:
        """Folder or URL of the run's files."""
        return self.store or f"data/{self.name}"
