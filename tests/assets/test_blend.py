"""Assets of sources and blend: their checks, what they show, and comparing with an existing set of text or of tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dflash_assets.assets.blend import blend_asset, shortfalls_said
from dflash_assets.assets.build import build_resources
from dflash_assets.assets.common import Plan
from dflash_assets.assets.existing_prompts import ExistingSetPrompts
from dflash_assets.assets.sources import source_asset
from dflash_assets.assets.wiring import tokenizer_of
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.recipe.training_set import ExistingSet
from tests.support.project import make_project, recipe_data

ASK = "Please tell me in your own words how the long river comes from the high mountains down to the sea"


def materialised(folder: Path, **blend: Any) -> tuple[dg.ExecuteInProcessResult, dict[str, dg.AssetCheckEvaluation]]:
    changes = blend.pop("changes", {})
    data = recipe_data({"kind": "embedded"}, prompts=200, store=str(folder / "store"), **changes)
    data["blend"] |= blend
    make_project(folder, data)
    recipe = Recipe.model_validate(data)
    plan = Plan(recipe, folder)
    assets = [*(source_asset(plan, source) for source in recipe.sources), blend_asset(plan)]
    with dg.instance_for_test() as instance:
        ran = dg.materialize(assets, instance=instance, resources={"store": build_resources(recipe, folder)["store"]}, raise_on_error=False)
    return ran, {f"{check.asset_key.path[-1]} {check.check_name}": check for check in ran.get_asset_check_evaluations()}


def test_checks_pass_and_the_mix_is_shown(tmp_path: Path) -> None:
    (tmp_path / "bench.jsonl").write_text(json.dumps({"q": ASK}))
    benchmarks = [
        {"name": "rivers", "path": "bench.jsonl", "fields": ["q"]},
        {"name": "absent", "path": "absent.jsonl", "fields": ["q"], "when_missing": "skip"},
    ]
    ran, checks = materialised(tmp_path, decontaminate=benchmarks, near_duplicates={"threshold": 0.95})
    assert ran.success
    assert {name for name, check in checks.items() if not check.passed} == set()
    assert {name.split()[1] for name in checks} == {"rejected_share", "schema", "unique", "mix", "quotas_met", "uncontaminated"}
    [shown] = [event for event in ran.get_asset_materialization_events() if event.asset_key and event.asset_key.path[-1] == "blend"]
    metadata = shown.materialization.metadata
    assert str(metadata["mix_plot"].value).startswith("![mix](data:image/png;base64,")
    assert "| source | chat |" in str(metadata["mix_table"].value)
    assert (metadata["benchmarks"].value, metadata["benchmarks_skipped"].value) == ("rivers", "absent")


def test_a_quota_that_is_not_met_says_by_how_much(tmp_path: Path) -> None:
    sources = [{"name": "chat", "format": "sharegpt", "path": "chat.jsonl", "take": 50}]
    ran, checks = materialised(tmp_path, changes={"sources": sources})
    assert ran.success
    check = checks["blend quotas_met"]
    assert not check.passed
    assert check.metadata["said"].value == "chat: 40 of 50 prompts, 10 too few; 41 came in, exact_duplicate 1"


def test_a_token_budget_that_is_not_met_says_so_in_tokens() -> None:
    row = {"take": "900 tokens", "accepted": 5, "asked": 9, "asked_tokens": 900, "reached": 5, "tokens": 500, "shortfall": 4, "dropped": {}}
    assert shortfalls_said({"sources": {"s": row}}) == ["s: 5 of 9 prompts (500 of 900 tokens), 4 too few; 5 came in, nothing was dropped"]


def test_a_missing_benchmark_stops_before_anything_is_blended(tmp_path: Path) -> None:
    ran, _ = materialised(tmp_path, decontaminate=[{"name": "absent", "path": "absent.jsonl", "fields": ["q"]}])
    [failed] = [event for event in ran.all_events if event.is_step_failure]
    failure = failed.step_failure_data.user_failure_data
    assert failure is not None
    assert "blend.decontaminate.absent: there is no file" in str(failure.description)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("text", {"in_existing_set": 6}),  # one of the five stands twice among the rows
        # Its template writes a system text of its own, so messages differ; the token ids are equal.
        ("tokens", {"in_existing_set": 5, "exact_duplicate": 1}),
    ],
)
def test_prompts_of_an_existing_set_are_not_asked_again(tmp_path: Path, kind: str, expected: dict[str, int]) -> None:
    asked = [f"Tell me fact number {number} about rivers." for number in range(5)]
    conversations = [[{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}] for text in asked]
    existing: dict[str, Any] = {"path": "existing.jsonl", "format": "jsonl"}
    if kind == "text":
        existing |= {"messages": "messages", "id": None}
        rows: list[dict[str, Any]] = [{"messages": conversation} for conversation in conversations]
    else:
        tokenizer = tokenizer_of(Recipe.model_validate(recipe_data({"kind": "embedded"})).target_model, tmp_path)
        rows = []
        for number, conversation in enumerate(conversations):
            prompt = tokenizer.encode_prompt(conversation[:1], None, False)
            answer = tokenizer.encode("Yes.<|im_end|>")
            mask = [0] * len(prompt) + [1] * len(answer)
            rows.append({"id": f"old{number}", "input_ids": prompt + answer, "loss_mask": mask})
    (tmp_path / "existing.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran, _ = materialised(tmp_path, against_existing=True, changes={"training_set": {"max_length": 1024, "existing": existing}})
    assert ran.success
    [shown] = [event for event in ran.get_asset_materialization_events() if event.asset_key and event.asset_key.path[-1] == "blend"]
    assert shown.materialization.metadata["compared_with_existing"].value == {"prompts": 5, "unreadable": 0}
    dropped = shown.materialization.metadata["dropped"]
    assert isinstance(dropped, dg.TableMetadataValue)
    assert {record.data["reason"]: record.data["rows"] for record in dropped.records} == expected


def test_every_answer_of_a_conversation_has_a_prompt(tmp_path: Path) -> None:
    turns = [
        {"from": "human", "value": "One?"}, {"from": "gpt", "value": "1"}, {"from": "human", "value": "Two?"}, {"from": "gpt", "value": "2"},
    ]  # fmt: skip
    rows = [{"c": turns}, {"c": json.dumps(turns[:2])}, {"c": "torn ["}, {"c": [{"from": "gpt", "value": "nobody asked"}]}]
    (tmp_path / "e.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = ExistingSet(path="e.jsonl", format="jsonl", messages="c", id=None)
    tokenizer = tokenizer_of(Recipe.model_validate(recipe_data({"kind": "embedded"})).target_model, tmp_path)
    found = [
        (prompt.row, [message["content"] for message in prompt.messages or ()]) for prompt in ExistingSetPrompts(spec, tokenizer, tmp_path)
    ]
    assert found == [(0, ["One?"]), (0, ["One?", "1", "Two?"]), (1, ["One?"])]
