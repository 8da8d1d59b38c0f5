"""A row shown to people: nothing hidden, nothing executed."""

from pathlib import Path

import pytest

from dflash_assets.errors import TrainingSetError
from dflash_assets.training_set.explain import Token, as_html, as_text, find_row, stretches, tokens_of
from dflash_assets.training_set.merge import build_training_set
from tests.support.training_set import FACTS, Event, spec, write_shard


def decode_bytes(ids: list[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


def test_tokens_join_to_the_text_and_cut_characters_are_shown_once() -> None:
    data = "hé🙂\ufffd".encode()
    tokens = tokens_of(list(data), [0, 0, 0, 1, 1, 1, 1, 1, 1, 1], decode_bytes, set())
    assert "".join(token.text for token in tokens).replace("·", "").startswith("hé🙂")
    assert [token.id for token in tokens] == list(data)
    assert [len(run) for _, run in stretches(tokens)] == [3, 7]


def test_markup_in_a_row_stays_text_and_control_characters_are_visible() -> None:
    tokens = [Token(1, "<script>alert(1)</script>", False, False), Token(2, "[red]\n\x1b", True, False), Token(3, "<|im_end|>", True, True)]
    page = as_html("a <b>", tokens)
    assert "<script" not in page
    assert "&lt;|im_end|&gt;" in page
    assert 'class="s c" title="2: id 3"' in page
    assert page.count('class="b"') == 1
    assert as_text(tokens).plain == "<script>alert(1)</script>▏[red]\\n\n\\u001b<|im_end|>"


def test_a_row_is_found_by_its_id_or_an_unambiguous_beginning(tmp_path: Path) -> None:
    events = [Event("abc", prompt_ids=(1, 3)), Event("abd", prompt_ids=(1, 4)), Event("x", prompt_ids=(1, 5))]
    build_training_set([write_shard(tmp_path, events)], spec(), FACTS, tmp_path / "out", base_dir=tmp_path, seed=0, on_length="keep_open")
    split, row = find_row(tmp_path / "out", "x")
    assert (split, row["id"], row["input_ids"]) == ("train", "x-0-0-0-0", [1, 5, 10, 11, 12, 2])
    assert find_row(tmp_path / "out", "abc-0-0-0-0")[1]["prompt_id"] == "abc"
    with pytest.raises(TrainingSetError, match="2 rows begin with 'ab'"):
        find_row(tmp_path / "out", "ab")
    with pytest.raises(TrainingSetError, match="no row has the id 'nobody'"):
        find_row(tmp_path / "out", "nobody")
