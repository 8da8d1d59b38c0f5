from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.validation.pieces import PieceDecoder


def of_bytes(ids: Sequence[int]) -> str:
    """A byte-level vocabulary: ids below 256 are bytes, 256 is a word, 257 half of a two-byte character and a letter."""
    return b"".join(bytes([token]) if token < 256 else {256: b" word", 257: b"\xa9x"}[token] for token in ids).decode(errors="replace")


@given(st.lists(st.lists(st.integers(0, 257)) | st.text().map(lambda text: list(text.encode())), max_size=4))
def test_equals_the_decoder(rows: list[list[int]]) -> None:
    pieces = PieceDecoder(of_bytes)
    for ids in rows:
        assert pieces(np.array(ids, np.int32)) == of_bytes(ids)


def test_decodes_each_piece_once() -> None:
    asked: list[Sequence[int]] = []

    def decode(ids: Sequence[int]) -> str:
        asked.append(ids)
        return of_bytes(ids)

    pieces = PieceDecoder(decode)
    assert pieces(np.array([256, 97, 256, 97], np.int32)) == " worda worda"
    assert pieces(np.array([97, 256], np.int32)) == "a word"
    assert asked == [[97], [256]]
