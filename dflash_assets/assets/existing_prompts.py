"""The prompts of `training_set.existing` for the blend: brings the room that reads the set together with those that compare.

Here: rows of tokens cut at their answer and decoded, conversations cut before each answer. Not here: reading the set's
files (`training_set`), canonical messages (`sources`), comparing (`blend`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dflash_assets.blend.existing import ExistingPrompt, messages_of_render
from dflash_assets.recipe.training_set import ExistingSet
from dflash_assets.sources.literals import NotPlain, parse_json
from dflash_assets.sources.normalise import ROLES, canonical
from dflash_assets.sources.records import Draft, RowFault
from dflash_assets.tokens.tokenizer import TargetTokenizer
from dflash_assets.training_set.contracts import TokenFacts
from dflash_assets.training_set.existing import ExistingRows
from dflash_assets.training_set.existing_files import ExistingFiles
from dflash_assets.training_set.ragged import Ragged


class ExistingSetPrompts:
    """All prompts of an existing set: one for each row of tokens, or for each answer of a conversation.

    Iterating raises TrainingSetError for what would stop the merge later: missing columns, ids outside the vocabulary,
    masks of another length, another tokenizer.
    """

    def __init__(self, spec: ExistingSet, tokenizer: TargetTokenizer, base_dir: Path) -> None:
        self._spec, self._tokenizer, self._base_dir = spec, tokenizer, base_dir

    @property
    def digest(self) -> str:
        """Changes when the set does."""
        return ExistingFiles(self._spec, self._base_dir).content_digest()

    def __iter__(self) -> Iterator[ExistingPrompt]:
        """All of them, in the set's order, in bounded memory."""
        return self._of_tokens() if self._spec.messages is None else self._of_conversations(self._spec.messages)

    def _of_tokens(self) -> Iterator[ExistingPrompt]:
        tokenizer = self._tokenizer
        facts = TokenFacts(tokenizer.sha, tokenizer.template_sha, tokenizer.vocab_size, tokenizer.stop_token_ids, tokenizer.turn_marker_ids)
        number = 0
        for table in ExistingRows(self._spec, facts, self._base_dir).tables():
            ids = Ragged.from_arrow(table["input_ids"])
            for row, length in zip(ids.pieces(), table["prompt_length"].to_pylist(), strict=True):
                prompt = row[:length]
                yield ExistingPrompt(number, messages_of_render(tokenizer.decode(prompt.tolist())), prompt)
                number += 1

    def _of_conversations(self, column: str) -> Iterator[ExistingPrompt]:
        files = ExistingFiles(self._spec, self._base_dir)
        number = 0
        for piece in files.pieces([column, *([self._spec.tools] if self._spec.tools else [])]):
            for row in piece.table.to_pylist():
                for messages in _prompts(_plain(row.get(column))):
                    yield ExistingPrompt(number, messages)
                number += 1


def _plain(value: Any) -> list[Any]:
    for _ in range(2):  # in a file where some rows hold lists and some JSON text, the text comes as JSON of itself
        if isinstance(value, str):
            try:
                value = parse_json(value)[0]
            except NotPlain:
                return []
    return value if isinstance(value, list) else []


def _prompts(conversation: list[Any]) -> Iterator[list[dict[str, Any]]]:
    """Canonical messages before each answer; answers that no prompt of ours could have are passed over."""
    for place, message in enumerate(conversation):
        role = message.get("role", message.get("from")) if isinstance(message, dict) else None
        if ROLES.get(str(role)) == "assistant":
            try:
                yield canonical(Draft(conversation[:place])).messages
            except RowFault:
                continue
