"""A recipe that replays conversations, on a simulated server: from the source to the certificate, and again without a request."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from dflash_assets.recipe.load import load_recipe
from dflash_assets.tokens.load import load_tokenizer
from tests.support.project import Project, make_project, recipe_data, simulator

CONVERSATIONS = 12


def project(folder: Path, url: str) -> Project:
    data = recipe_data({"kind": "sglang", "servers": [{"url": url}]}, prompts=24, shard_size=8)
    data["sources"][0]["replay"] = "conversation"
    made = make_project(folder, data, rows=12)
    turns = [
        ("human", "Name river {n}."),
        ("gpt", "RECORDED one"),
        ("human", "And its source?"),
        ("gpt", "RECORDED two"),
        ("human", "And mouth?"),
    ]
    rows = [
        {"id": str(n), "conversations": [{"from": who, "value": text.format(n=n)} for who, text in turns]} for n in range(CONVERSATIONS)
    ]
    (folder / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def test_every_turn_becomes_a_training_row_with_the_ids_that_were_sent(tmp_path: Path) -> None:
    with simulator("--mean-tokens", "12", "--sigma", "0.3", "--cap-tokens", "40") as url:
        made = project(tmp_path / "project", url)
        ran = made.command("run", "r.yaml")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        first = made.progress()
        again = made.command("run", "r.yaml")
        assert again.returncode == 0, again.stdout + again.stderr
        assert made.progress()["requests_sent"] == 0, "every history was found again from the answers"

    manifest = made.manifest()
    stored = {name: [made.store / file["path"] for file in entry["files"]] for name, entry in manifest.items()}
    prompts = {
        row["prompt_id"]: row for name in stored if name.startswith("prompts/shard-") for row in pq.read_table(stored[name][0]).to_pylist()
    }
    events = [row for name in stored if name.startswith("completions/") for row in pq.read_table(stored[name][0]).to_pylist()]
    replayed = [row for row in events if prompts[row["prompt_id"]]["replayed_turns"] is not None]
    ends = Counter(row["conversation_end"] for row in replayed if row["conversation_end"])
    assert sum(ends.values()) == CONVERSATIONS
    assert ends["complete"] > 0
    assert first["conversations"] == dict(ends)
    assert first["requests_sent"] == len(events) >= 12 + CONVERSATIONS

    tokenizer = load_tokenizer(load_recipe(made.recipe).target_model, made.folder)
    by_turn = {(row["prompt_id"], row["turn"]): row for row in replayed}
    for (prompt_id, turn), row in by_turn.items():
        recorded = json.loads(prompts[prompt_id]["messages_json"])
        users = [message for message in recorded if message["role"] == "user"]
        history = [message for message in recorded if message["role"] == "system"]
        for earlier in range(turn):
            said = by_turn[prompt_id, earlier]["text"].removesuffix("<|im_end|>")
            history += [users[earlier], {"role": "assistant", "content": said}]
        assert row["prompt_ids"] == tokenizer.encode_prompt([*history, users[turn]], None, False)

    training = [
        row
        for name in stored
        if name == "training_set"
        for path in stored[name]
        if path.suffix == ".parquet"
        for row in pq.read_table(path).to_pylist()
        if "input_ids" in row
    ]
    kept = {row["id"]: row for row in training}
    taken = [row for row in replayed if row["event_id"] in kept]
    assert {row["turn"] for row in taken} == {0, 1, 2}
    for row in taken:
        assert kept[row["event_id"]]["input_ids"] == row["prompt_ids"] + row["output_ids"]
        assert kept[row["event_id"]]["loss_mask"] == [False] * len(row["prompt_ids"]) + [True] * len(row["output_ids"])

    assert "RECORDED" not in "".join(tokenizer.decode(row["prompt_ids"]) for row in replayed)
    assert manifest["training_set"]["facts"]["certificate"]["holds"] is True, "later prompts are found again from the answers before them"
