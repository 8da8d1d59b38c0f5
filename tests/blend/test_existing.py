"""Prompts of an existing set: read back from tokens, found again by messages, token ids and similarity."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.blend.existing import ExistingIndex, ExistingPrompt, messages_of_render, rendering_key
from dflash_assets.errors import RecipeError
from dflash_assets.recipe.load import load_recipe
from tests.support.blend import Blended, CharacterEncoder, prompt_file, recipe_of
from tests.support.project import recipe_data

LONG = "Please write a careful essay about the rivers of the world, their lengths, their names and the peoples along them"


def asked(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def test_a_render_is_read_back() -> None:
    text = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi\nthere<|im_end|>\n<|im_start|>assistant\n<think>\nx\n</think>\n\nHello"
        "<|im_end|>\n<|im_start|>user\n<tool_response>\n1\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    assert messages_of_render(text) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi\nthere"},
        {"role": "assistant", "content": "Hello"},
        {"role": "tool", "content": "<tool_response>\n1\n</tool_response>"},
    ]


@pytest.mark.parametrize("text", ["", "no markers", "<|im_start|>system\nx<|im_end|>\n<|im_start|>assistant\n", "<|im_start|>user\ncut"])
def test_without_a_user_there_are_no_messages(text: str) -> None:
    assert messages_of_render(text) is None


def test_the_index_finds_rows_by_messages_and_by_tokens(tmp_path: Path) -> None:
    prompts = [ExistingPrompt(number, asked(f"Question {number}"), [number, 1, 2]) for number in (5, 6, 9)] + [
        ExistingPrompt(11, None, [7])
    ]
    index = ExistingIndex(prompts, tmp_path)
    assert (index.rows, index.unreadable) == (4, 1)
    assert [index.rendered_row(rendering_key(ids)) for ids in ([6, 1, 2], [7], [8])] == [6, 11, -1]
    assert list(index.texts()) == ["question 5", "question 6", "question 9"]
    assert index.rows_of([2, 0]).tolist() == [9, 5]
    index.close()
    assert not list(tmp_path.iterdir())


def test_what_the_set_has_is_not_asked_again(tmp_path: Path) -> None:
    files = {"s": prompt_file(tmp_path, "s", ["Known  question", LONG + " today", "By tokens only", "New", "Repeated", "Repeated "])}
    [by_tokens] = CharacterEncoder().encode_prompts([_conversation("By tokens only")])
    existing = [
        ExistingPrompt(3, asked("known question")), ExistingPrompt(4, asked(LONG)), ExistingPrompt(4, None, by_tokens),
        ExistingPrompt(8, asked("Something else entirely")),
    ]  # fmt: skip
    done = Blended(recipe_of({"s": "all"}, near_duplicates={}), files, tmp_path / "out", existing=existing)
    assert done.reasons == {
        "s.jsonl:0": "in_existing_set", "s.jsonl:1": "near_duplicate_of_existing", "s.jsonl:2": "in_existing_set",
        "s.jsonl:5": "duplicate_after_normalisation",
    }  # fmt: skip
    details = {row["source_row"]: row["detail"] for row in done.dropped}
    assert details["s.jsonl:1"] == "repeats row 4 of the existing training set"
    assert done.plan.existing is not None
    assert (done.plan.existing.prompts, done.plan.existing.unreadable) == (4, 1)
    assert not [path for path in (tmp_path / "out").iterdir() if "tmp" in path.name]


def test_another_system_text_is_another_prompt_unless_near_duplicates_go(tmp_path: Path) -> None:
    files = {"s": prompt_file(tmp_path, "s", [LONG, "Other"])}
    existing = [ExistingPrompt(0, [{"role": "system", "content": "Rhyme."}, *asked(LONG)])]
    assert Blended(recipe_of({"s": "all"}), files, tmp_path / "exact", existing=existing).reasons == {}
    near = Blended(recipe_of({"s": "all"}, near_duplicates={}), files, tmp_path / "near", existing=existing)
    assert near.reasons == {"s.jsonl:0": "near_duplicate_of_existing"}


def test_rows_of_the_set_that_repeat_each_other_stay_references(tmp_path: Path) -> None:
    files = {"s": prompt_file(tmp_path, "s", [LONG + " now", "Other"])}
    existing = [ExistingPrompt(0, asked(LONG)), ExistingPrompt(1, asked(LONG + " !")), ExistingPrompt(2, asked(LONG + " ?"))]
    done = Blended(recipe_of({"s": "all"}, near_duplicates={}), files, tmp_path / "out", existing=existing)
    assert done.reasons == {"s.jsonl:0": "near_duplicate_of_existing"}


def test_a_recipe_without_a_set_cannot_compare_with_it(tmp_path: Path) -> None:
    recipe = recipe_data({"kind": "embedded"})
    recipe["blend"]["against_existing"] = True
    (tmp_path / "r.yaml").write_text(json.dumps(recipe))
    with pytest.raises(RecipeError, match=r"against_existing needs training_set\.existing"):
        load_recipe(tmp_path / "r.yaml")


def _conversation(text: str) -> Any:
    from dflash_assets.tokens.tokenizer import Conversation

    return Conversation(asked(text), None, False)


@pytest.mark.parametrize("part", ["<|im_start|>user\n", "<|im_start|>", "<|im_start|>user\nx<|im_end|>"])
def test_a_megabyte_of_turns_takes_linear_time(part: str) -> None:
    """Quadratic steps would take minutes here and hit the test's time limit."""
    count = 4_000_000 // len(part)
    found = messages_of_render(part * count)
    assert (len(found) if found else 0) == (count if "im_end" in part else 0)


@given(st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", "user", "assistant", "\n", " ", "x"]), max_size=30))
def test_turns_are_those_of_the_pattern(parts: list[str]) -> None:
    text = "".join(parts)
    roles = [role for role, _ in re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", text, re.DOTALL)]
    found = messages_of_render(text)
    assert [message["role"] for message in found or []] == (roles if "user" in roles else [])
