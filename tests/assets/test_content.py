"""The rules that run on answers as they land: every answer is judged by what it was asked with itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from dflash_assets.assets.content import content_rules
from dflash_assets.generation.content import Checked, prompt_of
from dflash_assets.generation.requests import Ask
from dflash_assets.generation.shards import completion_row
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.resources.store import DirectoryStore
from dflash_assets.tokens.load import load_tokenizer
from dflash_assets.workspace import Workspace
from tests.support.generation import an_answer, facts
from tests.support.project import recipe_data

CONVERSATION = [
    {"role": "user", "content": "Name a river."},
    {"role": "assistant", "content": "The Rhine."},
    {"role": "user", "content": "Another one."},
    {"role": "assistant", "content": "The Elbe."},
    {"role": "user", "content": "A third."},
]


def judged(folder: Path, order: list[int], *, wrong: int | None = None) -> list[Checked]:
    """Turns of one conversation in one batch, in this order; the ids of turn `wrong` aren't those of its messages."""
    recipe = Recipe.model_validate(recipe_data({"kind": "embedded"}))
    tokenizer = load_tokenizer(recipe.target_model, folder)
    rows: list[dict[str, Any]] = []
    prompts: list[dict[str, Any]] = []
    for turn in order:
        messages = CONVERSATION[: 2 * turn + 1]
        ids = tuple(tokenizer.encode_prompt(messages, None, False))
        text = "The Loire, which is long.<|im_end|>"
        ask = Ask(
            key=f"{turn:032x}",
            prompt_id="p",
            source="chat",
            turn=turn,
            sample=0,
            attempt_of_sample=0,
            supersedes=None,
            prompt_ids=ids,
            messages_json=orjson.dumps(messages).decode(),
            tools_json=None,
            thinking=False,
            recorded_json=orjson.dumps(CONVERSATION).decode(),
        )
        answer = an_answer(ask.key, text, tuple(tokenizer.encode_lists([text])[0]))
        row = completion_row(facts(sampling_json='{"max_tokens": 64}'), ask, answer)
        rows.append({**row, "prompt_ids": [*ids[1:], 5]} if turn == wrong else row)
        prompts.append(prompt_of(ask))
    return content_rules(Workspace(recipe, folder, DirectoryStore(folder / "store", "small"))).check(rows, prompts)


def test_turns_of_one_conversation_in_one_batch_are_judged_each_by_its_own_prompt(tmp_path: Path) -> None:
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        found = judged(tmp_path, order)
        assert len(found) == len(order)
        assert [one.failures for one in found] == [()] * len(order)
        assert all("round_trip" in one.applied for one in found)


def test_a_first_turn_sent_with_other_ids_is_still_found_among_them(tmp_path: Path) -> None:
    found = judged(tmp_path, [1, 0, 2], wrong=0)
    assert [[failure.reason for failure in one.failures] for one in found] == [[], ["prompt_ids_differ"], []]
