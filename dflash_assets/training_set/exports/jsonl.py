"""JSONL files of an export: numbered parts, UTF-8 with literal non-ASCII, one object a line, whoever splits the lines.

Here: writing lines. Not here: what an object holds.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Self

import orjson

from dflash_assets.training_set.contracts import SPLITS
from dflash_assets.training_set.exports.base import Written

_SEPARATORS = {character.encode(): f"\\u{ord(character):04x}".encode() for character in "\u0085\u2028\u2029"}
"""`str.splitlines`, with which Automodel takes a file apart, ends a line at these too. (JSON itself escapes the ASCII ones.)"""


def json_line(value: Any) -> bytes:
    """One line. Keys keep their order; numpy arrays become lists; integers beyond 64 bits are kept exactly."""
    try:
        line = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        # NaN would be no JSON: ValueError rather than a file its readers refuse
        line = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "surrogatepass") + b"\n"
    for separator, escaped in _SEPARATORS.items():
        line = line.replace(separator, escaped)
    return line


class JsonlWriter:
    """Appends objects to `folder/pattern.format(number)`, at most `rows_per_file` each; at least one file, even without rows."""

    def __init__(self, folder: Path, pattern: str, rows_per_file: int | None = None) -> None:
        self.rows = 0
        self._folder, self._pattern, self._rows_per_file = folder, pattern, rows_per_file
        self._files = 0
        self._handle: BinaryIO | None = None
        self._room = 0

    def write(self, value: Any) -> None:
        """Append one object."""
        handle = self._open() if self._handle is None or self._room == 0 else self._handle
        handle.write(json_line(value))
        self._room -= 1
        self.rows += 1

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.close()

    def _open(self) -> BinaryIO:
        if self._handle is not None:
            self._handle.close()
        self._handle = (self._folder / self._pattern.format(self._files)).open("wb", buffering=1 << 20)
        self._files += 1
        self._room = self._rows_per_file or -1  # below 0 it never reaches the 0 that opens the next file
        return self._handle


@contextmanager
def split_lines(folder: Path, written: Written) -> Generator[dict[str, JsonlWriter]]:
    """Writers of `train/train.jsonl` and `eval/eval.jsonl`: a folder a split, since trainers read every file of a folder."""
    for split in SPLITS:
        (folder / split).mkdir()
    written.data_files = {split: f"{split}/{split}.jsonl" for split in SPLITS}
    with JsonlWriter(folder / "train", "train.jsonl") as train, JsonlWriter(folder / "eval", "eval.jsonl") as evaluation:
        yield {"train": train, "eval": evaluation}
