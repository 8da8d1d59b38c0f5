"""The whole job through the command line, on a simulated server: results, resume, kills, faults, exit codes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.project import Project, make_project, recipe_data, simulator


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with simulator("--mean-tokens", "20") as url:
        yield url


def engine(*urls: str) -> dict[str, Any]:
    return {"kind": "sglang", "servers": [{"url": url} for url in urls]}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, server: str) -> Project:
    project = make_project(tmp_path_factory.mktemp("done"), recipe_data(engine(server)))
    ran = project.command("run", "r.yaml")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return project


def table(project: Project, name: str, position: int = 0) -> list[dict[str, Any]]:
    return pq.read_table(project.store / project.manifest()[name]["files"][position]["path"]).to_pylist()


def training_rows(project: Project) -> list[dict[str, Any]]:
    return [row for path in (project.store / "training_set").glob("*/part-*.parquet") for row in pq.read_table(path).to_pylist()]


def test_it_says_what_it_did(done: Project) -> None:
    ran = done.command("run", "r.yaml")
    assert ran.returncode == 0
    for words in ("Spot check", "not tested", "ledger:", "training set", "report.html", "next:"):
        assert words in ran.stdout
    assert "Traceback" not in ran.stdout + ran.stderr


def test_every_source_row_is_in_the_ledger_once(done: Project) -> None:
    ledger = table(done, "ledger")
    assert Counter(row["source"] for row in ledger) == {"chat": 43, "maths": 40}
    assert len({(row["source"], row["source_row"]) for row in ledger}) == 83
    states = Counter(row["state"] for row in ledger)
    assert states["kept"] + states["dropped"] + states["failed"] == 83
    reasons = {row["reason"] for row in ledger}
    assert {"json_decode_error", "null_prompt"} <= reasons


def test_training_rows_are_the_exact_ids(done: Project) -> None:
    completions = {row["event_id"]: row for name in done.manifest() if name.startswith("completions/") for row in table(done, name)}
    rows = training_rows(done)
    assert rows
    for row in rows:
        event = completions[row["id"]]
        assert row["input_ids"] == event["prompt_ids"] + event["output_ids"]
        assert row["loss_mask"] == [False] * len(event["prompt_ids"]) + [True] * len(event["output_ids"])


def test_the_masked_ids_decode_to_the_engines_text(done: Project) -> None:
    from dflash_assets.recipe.load import load_recipe
    from dflash_assets.tokens.load import load_tokenizer

    tokenizer = load_tokenizer(load_recipe(done.recipe).target_model, done.folder)
    texts = {row["event_id"]: row["text"] for name in done.manifest() if name.startswith("completions/") for row in table(done, name)}
    for row in training_rows(done):
        masked = [token for token, mask in zip(row["input_ids"], row["loss_mask"], strict=True) if mask]
        assert tokenizer.decode(masked) == texts[row["id"]]


def test_datasets_opens_the_export(done: Project) -> None:
    import datasets

    found = datasets.load_from_disk(str(done.store / "exports" / "speculators-arrow" / "train"))
    assert {"input_ids", "loss_mask", "seq_len"} <= set(found.features)
    assert all(len(row["input_ids"]) == len(row["loss_mask"]) == row["seq_len"] for row in found)


def test_a_second_run_asks_for_nothing(done: Project) -> None:
    before = done.manifest()
    assert done.command("run", "r.yaml").returncode == 0
    progress = done.progress()
    assert progress["requests_sent"] == 0
    assert progress["prompts_done"] == progress["prompts_total"] == 48
    assert done.manifest() == before


def test_a_changed_rule_validates_again_and_asks_for_nothing(done: Project, server: str) -> None:
    before = done.manifest()
    done.write(
        recipe_data(engine(server), validation={"rules": {"output_tokens_range": {"severity": "soft", "parameters": {"minimum": 1}}}})
    )
    try:
        assert done.command("run", "r.yaml").returncode == 0
        after = done.manifest()
        assert done.progress()["requests_sent"] == 0
        assert after["completions/shard-00000"] == before["completions/shard-00000"]
        assert after["verdicts/shard-00000"]["key"] != before["verdicts/shard-00000"]["key"]
    finally:
        done.write(recipe_data(engine(server)))


def test_status_report_and_peek(done: Project) -> None:
    status = done.command("status", "r.yaml", "--json")
    assert status.returncode == 0, status.stderr
    assert json.loads(status.stdout)["stages"]["completions"] == {"done": 6, "red": 0, "missing": 0}
    report = done.command("report", "r.yaml", "--json")
    assert report.returncode == 0, report.stderr
    assert len(json.loads(report.stdout)["spot_check"]) == 7
    peeked = done.command("peek", "r.yaml", "--source", "maths", "-n", "2")
    assert peeked.returncode == 0, peeked.stderr
    assert peeked.stdout.count("What is") == 2
    rejected = done.command("peek", "r.yaml", "--rejected", "null_prompt")
    assert "1 of 1 rows" in rejected.stdout
    assert done.command("peek", "r.yaml", "--source", "nobody").returncode == 2


def test_a_kill_in_the_middle_costs_only_what_was_in_flight(tmp_path: Path) -> None:
    with simulator("--mean-tokens", "40", "--tokens-per-second", "40", "--slots", "4") as url:
        project = make_project(tmp_path, recipe_data(engine(url)))
        process = project.start("run", "r.yaml")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            time.sleep(0.1)
            try:
                if project.progress()["prompts_done"] >= 12:
                    break
            except (OSError, ValueError):
                continue
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        killed = project.progress()
        assert 12 <= killed["prompts_done"] < 48
        ran = project.command("run", "r.yaml")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        again = project.progress()
        assert again["cached"] >= 12
        assert again["cached"] + again["requests_sent"] == 48
    events = Counter(row["prompt_id"] for name in project.manifest() if name.startswith("completions/") for row in table(project, name))
    assert len(events) == 48
    assert set(events.values()) == {1}
    assert len(table(project, "ledger")) == 83


def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    with simulator("--mean-tokens", "40", "--tokens-per-second", "40", "--slots", "4") as url:
        project = make_project(tmp_path, recipe_data(engine(url)))
        process = project.start("run", "r.yaml")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            time.sleep(0.1)
            try:
                if project.progress()["prompts_done"] >= 4:
                    break
            except (OSError, ValueError):
                continue
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert "run again" in said
    assert project.progress()["phase"] == "stopped"


def test_no_server_is_a_clear_error(tmp_path: Path) -> None:
    project = make_project(tmp_path, recipe_data(engine("http://127.0.0.1:9")))
    ran = project.command("run", "r.yaml")
    assert ran.returncode == 1
    assert "no server answers" in ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr


def test_a_server_with_another_model_is_refused(tmp_path: Path) -> None:
    with simulator("--model", "other/model") as url:
        project = make_project(tmp_path, recipe_data(engine(url)))
        ran = project.command("run", "r.yaml")
    assert ran.returncode == 1
    assert "other/model" in ran.stderr


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda p: p.recipe.write_text(p.recipe.read_text().replace("max_tokens", "max_token")), 2, "did you mean `max_tokens`"),
        (lambda p: (p.folder / "chat.jsonl").unlink(), 2, "chat.jsonl"),
        (lambda p: (p.folder / "chat.jsonl").write_text(""), 1, "no rows"),
        (lambda p: (p.folder / "chat.jsonl").write_text('{"dialogue": []}\n'), 1, "conversations"),
        (lambda p: p.write(recipe_data({"kind": "embedded"}, exports=[{"kind": "tokens-jsnol"}])), 2, "tokens-jsonl"),
        (lambda p: p.write(recipe_data({"kind": "embedded"}, validation={"rules": {"no_repetitoin": {}}})), 2, "no_repetition"),
    ],
)
def test_bad_input_ends_with_words(tmp_path: Path, change: Any, code: int, words: str) -> None:
    project = make_project(tmp_path, recipe_data({"kind": "embedded"}))
    change(project)
    ran = project.command("run", "r.yaml")
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert words in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr


def test_an_existing_set_of_another_tokenizer_is_refused(tmp_path: Path, server: str) -> None:
    (tmp_path / "old.jsonl").write_text(json.dumps({"id": "a", "input_ids": [1, 248045, 3], "loss_mask": [0, 1, 1]}) + "\n")
    recipe = recipe_data(engine(server))
    recipe["training_set"]["existing"] = {"path": "old.jsonl", "format": "jsonl"}
    project = make_project(tmp_path, recipe)
    ran = project.command("run", "r.yaml")
    assert ran.returncode == 1
    assert "248045" in ran.stderr
    assert (tmp_path / "old.jsonl").read_text().startswith('{"id": "a"')
