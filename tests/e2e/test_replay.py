"""A recipe that replays conversations, on a simulated server: from the source to certificate and exports, again without a request, and redriven."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dflash_assets.recipe.load import load_recipe
from dflash_assets.replay.ends import END_STATES
from dflash_assets.tokens.load import load_tokenizer
from dflash_assets.tokens.tokenizer import TargetTokenizer
from tests.support.project import Project, make_project, recipe_data, simulator

CONVERSATIONS, TURNS, PLAIN = 12, 3, 12


def project(folder: Path, url: str) -> Project:
    exports = [{"kind": "tokens-jsonl"}, {"kind": "openai-messages", "options": {"formats": ["jsonl"]}}, {"kind": "sharegpt"}]
    data = recipe_data({"kind": "sglang", "servers": [{"url": url}]}, prompts=24, shard_size=8, exports=exports)
    data["sources"][0]["replay"] = "conversation"
    made = make_project(folder, data, rows=PLAIN)
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


@dataclass
class Told:
    """A finished run, and what it left."""

    made: Project
    first: dict[str, Any]
    """Progress of the first run."""
    tokenizer: TargetTokenizer

    def rows(self, stage: str) -> list[dict[str, Any]]:
        manifest = self.made.manifest()
        paths = [self.made.store / entry["files"][0]["path"] for name, entry in manifest.items() if name.startswith(f"{stage}/shard-")]
        return [row for path in paths for row in pq.read_table(path).to_pylist()]

    @property
    def replayed(self) -> list[dict[str, Any]]:
        conversations = {row["prompt_id"] for row in self.rows("prompts") if row["replayed_turns"] is not None}
        return [row for row in self.rows("completions") if row["prompt_id"] in conversations]

    @property
    def ends(self) -> Counter[str]:
        return Counter(row["conversation_end"] for row in self.replayed if row["conversation_end"])

    def training(self) -> dict[str, dict[str, Any]]:
        files = self.made.manifest()["training_set"]["files"]
        paths = [self.made.store / file["path"] for file in files if "/part-" in file["path"]]
        return {row["id"]: row for path in paths for row in pq.read_table(path).to_pylist()}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    with simulator("--mean-tokens", "30", "--sigma", "0.9", "--cap-tokens", "200") as url:
        made = project(tmp_path_factory.mktemp("replay") / "project", url)
        ran = made.command("run", "r.yaml")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        yield Told(made, made.progress(), load_tokenizer(load_recipe(made.recipe).target_model, made.folder))


def test_every_conversation_ends_in_one_state_and_a_second_run_asks_nothing(told: Told) -> None:
    ends = told.ends
    assert sum(ends.values()) == CONVERSATIONS
    assert ends["complete"] > 0
    assert ends["stopped:cut"] > 0, "answers cut at 48 tokens stop their conversation"
    assert set(ends) <= set(END_STATES)
    assert told.first["conversations"] == dict(ends)
    assert told.first["requests_sent"] == len(told.rows("completions")) >= PLAIN + CONVERSATIONS
    assert told.first["prompts_done"] == told.first["prompts_total"] == len(told.rows("completions"))
    again = told.made.command("run", "r.yaml")
    assert again.returncode == 0, again.stdout + again.stderr
    assert told.made.progress()["requests_sent"] == 0, "every history was found again from the answers"


def test_every_turn_is_asked_on_the_models_own_answers(told: Told) -> None:
    prompts = {row["prompt_id"]: row for row in told.rows("prompts")}
    by_turn = {(row["prompt_id"], row["turn"]): row for row in told.replayed}
    for (prompt_id, turn), row in by_turn.items():
        recorded = json.loads(prompts[prompt_id]["messages_json"])
        users = [message for message in recorded if message["role"] == "user"]
        history = [message for message in recorded if message["role"] == "system"]
        for earlier in range(turn):
            said = by_turn[prompt_id, earlier]["text"].removesuffix("<|im_end|>")
            history += [users[earlier], {"role": "assistant", "content": said}]
        assert row["prompt_ids"] == told.tokenizer.encode_prompt([*history, users[turn]], None, False)
    assert "RECORDED" not in "".join(told.tokenizer.decode(row["prompt_ids"]) for row in told.replayed)


def test_every_turn_becomes_a_training_row_with_the_ids_that_were_sent(told: Told) -> None:
    kept = told.training()
    taken = [row for row in told.replayed if row["event_id"] in kept]
    assert {row["turn"] for row in taken} == set(range(TURNS))
    for row in taken:
        assert kept[row["event_id"]]["input_ids"] == row["prompt_ids"] + row["output_ids"]
        assert kept[row["event_id"]]["loss_mask"] == [False] * len(row["prompt_ids"]) + [True] * len(row["output_ids"])
    assert told.made.manifest()["training_set"]["facts"]["certificate"]["holds"] is True, "later prompts are found again from answers"


def test_exports_of_messages_hold_later_turns_with_the_history_they_were_asked_with(told: Told) -> None:
    manifest = told.made.manifest()
    entry = manifest["export/openai-messages"]
    rows = [
        json.loads(line)
        for file in entry["files"]
        if file["path"].endswith(".jsonl")
        for line in (told.made.store / file["path"]).read_text().splitlines()
    ]
    kept = told.training()
    assert {row["id"] for row in rows} == set(kept)
    assert "history_not_found" not in entry["facts"]["left_out"]
    events = {row["event_id"]: row for row in told.rows("completions")}
    later = 0
    for row in rows:
        event = events[row["id"]]
        asked = [{name: value for name, value in message.items() if value is not None} for message in row["messages"][:-1]]
        assert told.tokenizer.encode_prompt(asked, None, False) == event["prompt_ids"]
        assert row["messages"][-1]["content"] == event["text"].removesuffix("<|im_end|>")
        later += event["turn"] > 0
    assert later > CONVERSATIONS / 2
    sharegpt = manifest["export/sharegpt"]["facts"]
    assert sum(sharegpt["rows"].values()) == len(rows), "user and assistant still take turns"
    assert "RECORDED" not in json.dumps(rows)


def test_end_states_are_counted_where_people_look(told: Told) -> None:
    ends = dict(told.ends)
    status = json.loads(told.made.command("status", "r.yaml", "--json").stdout)
    assert status["conversations"] == dict(sorted(ends.items()))
    assert "conversations: complete" in told.made.command("status", "r.yaml").stdout
    report = json.loads((told.made.store / "report.json").read_text())
    assert {found["end"]: found["count"] for found in report["conversations"]} == ends
    assert report["later_turns"] == {"chat": sum(row["turn"] > 0 for row in told.replayed)}
    assert f"conversations {ends['complete']} of {CONVERSATIONS} complete" in report["status"]["line"]
    for page in ("report.md", "report.html"):
        text = (told.made.store / page).read_text()
        assert "Replayed conversations" in text
        assert "stopped:cut" in text
    mix = next(found for found in report["set_rules"] if found["rule"] == "source_share")
    assert "chat 50.0%" in mix["observed"], "a conversation counts once against the mix of the blend"


def test_the_ledger_says_how_far_each_conversation_got_and_closes(told: Told) -> None:
    manifest = told.made.manifest()
    ledger = pq.read_table(told.made.store / manifest["ledger"]["files"][0]["path"]).to_pylist()
    read = {name.removeprefix("source/"): entry["facts"]["rows_read"] for name, entry in manifest.items() if name.startswith("source/")}
    assert Counter(row["source"] for row in ledger) == Counter(read)
    last = {row["prompt_id"]: row for row in told.replayed if row["conversation_end"]}
    for row in ledger:
        found = last.get(row["prompt_id"])
        if found is None:
            assert "turn" not in (row["detail"] or "")
        else:
            assert row["detail"].endswith(f"turn {found['turn'] + 1} of {TURNS}: {found['conversation_end']}")


def test_peek_shows_the_turn_and_what_it_was_asked_with(told: Told) -> None:
    page = told.made.command("peek", "r.yaml", "--source", "chat", "-n", "100", "--full").stdout
    assert f"turn {TURNS} of {TURNS}" in page
    assert "answer to turn 2" in page
    assert "the conversation ends here: complete" in page
    assert "RECORDED" not in page
    cut = told.made.command("peek", "r.yaml", "--end", "cut", "-n", "100").stdout
    assert f"{told.ends['stopped:cut']} rows that match" in cut
    wrong = told.made.command("peek", "r.yaml", "--end", "finished")
    assert "ends: complete, call_mismatch" in wrong.stderr


def test_a_redriven_turn_takes_its_later_turns_along(told: Told) -> None:
    """Last: it changes what the other tests look at."""
    before = {row["event_id"]: row for row in told.replayed}
    cut = [row for row in before.values() if row["outcome"] == "length"]
    assert {row["conversation_end"] for row in cut} == {"stopped:cut"}
    done = told.made.command("redrive", "r.yaml", "--outcome", "length", "--source", "chat", "--max-tokens", "400", "--continue")
    assert done.returncode == 0, done.stdout + done.stderr
    after = {row["event_id"]: row for row in told.replayed}
    current = [row for row in after.values() if row["event_id"] not in {other["supersedes"] for other in after.values()}]
    new = [row for row in after.values() if row["event_id"] not in before]
    mended = {row["supersedes"]: row for row in new if row["supersedes"]}
    assert set(mended) == {row["event_id"] for row in cut}
    for row in cut:
        assert mended[row["event_id"]]["output_ids"][: len(row["output_ids"])] == row["output_ids"]
        assert after[row["event_id"]]["conversation_end"] is None, "no conversation ends with what was superseded"
    assert {row["event_id"] for row in before.values() if row["outcome"] == "ok"} <= set(after), "good turns stay as they were"
    gone_on = {(row["prompt_id"], row["turn"]) for row in new if not row["supersedes"]}
    for row in cut:
        if row["turn"] < TURNS - 1 and mended[row["event_id"]]["outcome"] == "ok":
            assert (row["prompt_id"], row["turn"] + 1) in gone_on, "the conversation goes on behind its mended turn"
    assert Counter(row["prompt_id"] for row in current if row["conversation_end"]) == Counter({row["prompt_id"]: 1 for row in current})
    # An answer that asks for the next turn is sent once.
    assert told.made.progress()["requests_sent"] == len(new)
    ran = told.made.command("run", "r.yaml")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert told.made.progress()["requests_sent"] == 0
    assert told.made.manifest()["training_set"]["facts"]["certificate"]["holds"] is True
    assert {row["event_id"] for row in new if row["outcome"] == "ok"} <= set(told.training())


def test_a_later_turn_without_room_in_the_context_ends_its_conversation(tmp_path: Path) -> None:
    with simulator("--mean-tokens", "12", "--sigma", "0.1", "--cap-tokens", "40") as url:
        made = project(tmp_path / "project", url)
        long = {"id": "long", "conversations": [
            {"from": "human", "value": "Name a river."}, {"from": "gpt", "value": "RECORDED one"},
            {"from": "human", "value": "And its source? " + "Think of every brook. " * 2_000}, {"from": "gpt", "value": "RECORDED two"},
            {"from": "human", "value": "And mouth?"},
        ]}  # fmt: skip
        with (made.folder / "chat.jsonl").open("a") as file:
            file.write(json.dumps(long) + "\n")
        ran = made.command("run", "r.yaml")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        told = Told(made, made.progress(), load_tokenizer(load_recipe(made.recipe).target_model, made.folder))
    recipe = load_recipe(made.recipe)
    [prompt] = [row for row in told.rows("prompts") if "every brook" in row["messages_json"]]
    [answer] = [row for row in told.replayed if row["prompt_id"] == prompt["prompt_id"]]
    assert (answer["turn"], answer["outcome"], answer["conversation_end"]) == (0, "ok", "stopped:prompt_too_long"), "what was made is kept"
    assert told.first["conversations"]["stopped:prompt_too_long"] == told.ends["stopped:prompt_too_long"] == 1
    room = recipe.target_model.context_length - recipe.generation.sampling.max_tokens
    assert max(len(row["prompt_ids"]) for row in told.rows("completions")) <= room, "no server was asked what it had to refuse"
    assert not told.first.get("faults")
    assert answer["event_id"] in told.training()
    manifest = made.manifest()
    ledger = pq.read_table(made.store / manifest["ledger"]["files"][0]["path"]).to_pylist()
    [row] = [row for row in ledger if row["prompt_id"] == prompt["prompt_id"]]
    assert row["detail"].endswith(f"turn 1 of {TURNS}: stopped:prompt_too_long")
