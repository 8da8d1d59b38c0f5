"""Lines of JSONL sets, whatever stands in their strings and wherever a block of bytes ends."""

import io
import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dflash_assets.recipe.training_set import ExistingSet
from dflash_assets.training_set import existing_files
from dflash_assets.training_set.existing_files import ExistingFiles

TEXT = st.text(st.sampled_from('ab\u2028\u0085\x0b\x1c\r é🙂"\\'), max_size=6)


class Blocks(io.BytesIO):
    """Gives a few bytes at a time."""

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__(data)
        self._block = size

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._block)


@given(st.lists(TEXT, max_size=6), st.integers(1, 9), st.booleans())
def test_lines_end_at_line_feeds_only(texts: list[str], block: int, closed: bool) -> None:
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    data = "\n".join(lines) + ("\n" if closed and lines else "")
    read = [line.decode() for line in existing_files._split_lines(Blocks(data.encode(), block))]  # pyright: ignore[reportPrivateUsage]
    assert read == lines


def test_objects_in_jsonl_keep_exactly_their_own_keys(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": "a", "args": {"x": 1}}]},
        {"messages": [{"role": "user", "content": "b", "args": {"y": [2]}}]},
    ]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = ExistingFiles(ExistingSet(path="x.jsonl", format="jsonl"), tmp_path)
    [piece] = files.pieces(["messages"])
    assert [json.loads(text) for text in piece.table["messages"].to_pylist()] == [row["messages"] for row in rows]


def test_gzipped_jsonl_is_read(tmp_path: Path) -> None:
    import gzip

    (tmp_path / "set").mkdir()
    with gzip.open(tmp_path / "set" / "a.jsonl.gz", "wt") as handle:
        handle.write('{"id": "a"}\n{"id": "b"}\n')
    files = ExistingFiles(ExistingSet(path="set", format="jsonl"), tmp_path)
    assert [row for piece in files.pieces(["id"]) for row in piece.table["id"].to_pylist()] == ["a", "b"]
