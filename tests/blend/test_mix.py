"""The mix table: cells add up, what was asked is shared out, lengths of unrendered prompts are estimated, the picture is one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.blend.mix import DIMENSIONS, _shared_out, marginal, mix_markdown
from dflash_assets.blend.mix_plot import mix_png
from dflash_assets.blend.plan import BlendPlan
from dflash_assets.rows import PROMPT
from dflash_assets.tables import write_rows
from tests.support.blend import Blended, prompt_row, recipe_of


def mixed(folder: Path) -> BlendPlan:
    rows = [
        prompt_row("a", number, f"Prompt number {number} " + "word " * (number % 50), category="math" if number % 3 else "code", language="de" if number % 10 == 0 else "en")
        for number in range(300)
    ]  # fmt: skip
    write_rows(folder / "a.parquet", PROMPT, rows)
    write_rows(folder / "b.parquet", PROMPT, [prompt_row("b", number, f"Short {number}") for number in range(20)])
    files = {"a": folder / "a.parquet", "b": folder / "b.parquet"}
    return Blended(recipe_of({"a": 60, "b": 50}, thinking_share=0.5), files, folder / "out").plan


def test_cells_add_up_to_the_sources(tmp_path: Path) -> None:
    plan = mixed(tmp_path)
    assert marginal(plan.mix, "source") == {name: (source.asked, source.found, source.reached) for name, source in plan.sources.items()}
    for dimension in DIMENSIONS:
        totals = [sum(counts[place] for counts in marginal(plan.mix, dimension).values()) for place in range(3)]
        assert totals == [110, 320, 80]
    assert sum(cell.tokens for cell in plan.mix) == plan.tokens
    assert plan.sources["b"].shortfall == 30


def test_every_label_of_a_prompt_is_a_dimension(tmp_path: Path) -> None:
    plan = mixed(tmp_path)
    assert {counts[1] for key, counts in marginal(plan.mix, "language").items() if key == "de"} == {30}
    assert marginal(plan.mix, "category")["code"][1] == 100
    assert set(marginal(plan.mix, "thinking")) == {True, False}
    lengths = marginal(plan.mix, "length")
    assert list(lengths) == sorted(lengths)
    assert all(size & (size - 1) == 0 for size in lengths)
    assert max(lengths) <= 128  # 60 of a's 300 prompts were rendered; the others' lengths follow from their bytes


@given(st.integers(0, 10_000), st.lists(st.integers(0, 500), max_size=20))
def test_whole_numbers_share_out_a_total(total: int, weights: list[int]) -> None:
    shares = _shared_out(total, np.array(weights, dtype=np.int64))
    assert sum(shares) == (total if sum(weights) else 0)
    for share, weight in zip(shares, weights, strict=True):
        assert sum(weights) == 0 or abs(share - total * weight / sum(weights)) < 1


def test_markdown_and_picture_say_the_same(tmp_path: Path) -> None:
    plan = mixed(tmp_path)
    text = mix_markdown(plan, most_cells=2)
    assert "| source | a | 60 | 300 | 60 | 75.0% |" in text
    assert "| source | b | 50 | 20 | 20 | 25.0% |" in text
    assert f"{len(plan.mix) - 2:,} smaller cells" in text
    picture = mix_png(plan)
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(picture) < 80_000
    assert mix_png(plan) == picture
