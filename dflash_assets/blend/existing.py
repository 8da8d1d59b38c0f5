"""Prompts of an existing training set, for keeping the blend from asking them again.

Here: the shape they come in, reading a rendered prompt back into messages, the index of their keys. Not here: the files
of the set (`dflash_assets.training_set` reads them, the assets bring both together) and near-duplicates, which take the
texts from here. Memory: 24 bytes a prompt; texts lie in a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from dflash_assets.blend.text import compared_text, duplicate_key
from dflash_assets.tables import TableWriter, iterate_rows

_TEXTS = pa.schema([pa.field("row", pa.int64()), pa.field("text", pa.string())])
_START, _END = "<|im_start|>", "<|im_end|>"
_ROLE = re.compile(r"(\w+)\n")
_THOUGHT = re.compile(r"\A\s*<think>.*?</think>\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ExistingPrompt:
    """One prompt of the set: what a model was asked before an answer that is trained on."""

    row: int
    """Row of the set, from 0."""
    messages: list[dict[str, Any]] | None
    """Role and content of each message, up to the last of the user's; None where they can't be told from the tokens."""
    prompt_ids: Any = None
    """Token ids before the answer, for sets of tokens."""


def messages_of_render(text: str) -> list[dict[str, Any]] | None:
    """Messages of a rendered ChatML prompt (decoded ids, control tokens kept); None when no user speaks in it.

    Tool results, which Qwen templates print as a user's, are tool messages again. System text is as rendered: with the
    template's own words and the tools in it.
    """
    messages: list[dict[str, Any]] = []
    for role, content in _turns(text):
        if role == "user" and content.lstrip().startswith("<tool_response>"):
            role = "tool"
        elif role == "assistant":
            content = _THOUGHT.sub("", content)
        messages.append({"role": role, "content": content})
    return messages if any(message["role"] == "user" for message in messages) else None


def _turns(text: str) -> Iterator[tuple[str, str]]:
    """Role and content of each closed turn. By `find`: a pattern from mark to mark takes quadratic steps on text that only opens."""
    place = text.find(_START)
    while place >= 0:
        role = _ROLE.match(text, place + len(_START))
        if role is None:
            place = text.find(_START, place + len(_START))
            continue
        end = text.find(_END, role.end())
        if end < 0:
            return
        yield role[1], text[role.end() : end]
        place = text.find(_START, end + len(_END))


def rendering_key(ids: Sequence[int]) -> int:
    """128-bit xxh3 of token ids (little-endian int32)."""
    return xxhash.xxh3_128_intdigest(np.asarray(ids, dtype="<i4").tobytes())


class ExistingIndex:
    """Keys of all prompts of an existing set, sorted; their texts in `folder`."""

    def __init__(self, prompts: Iterable[ExistingPrompt], folder: Path) -> None:
        self.rows = self.unreadable = 0
        """Prompts, and those of which only the token ids can be compared."""
        self._path = folder / "existing-texts.tmp.parquet"
        keys: list[bytes] = []
        key_rows: list[int] = []
        renderings: list[int] = []
        rendering_rows: list[int] = []
        with TableWriter(self._path, _TEXTS) as writer:
            for prompt in prompts:
                self.rows += 1
                if prompt.prompt_ids is not None:
                    renderings.append(rendering_key(prompt.prompt_ids) & 0xFFFFFFFFFFFFFFFF)
                    rendering_rows.append(prompt.row)
                if prompt.messages is None:
                    self.unreadable += 1
                    continue
                keys.append(duplicate_key(prompt.messages, None)[:8])
                key_rows.append(prompt.row)
                writer.write({"row": prompt.row, "text": compared_text(prompt.messages)})
        self._keys, self._key_rows = _sorted(np.frombuffer(b"".join(keys), dtype=np.uint64), key_rows)
        self._renderings, self._rendering_rows = _sorted(np.array(renderings, dtype=np.uint64), rendering_rows)
        self._text_rows = np.array(key_rows, dtype=np.int64)

    def texts(self) -> Iterator[str]:
        """Folded user texts of the readable prompts, in the set's order."""
        for row in iterate_rows(self._path, ["text"]):
            yield row["text"]

    def rows_of(self, places: Any) -> Any:
        """Rows of the texts at these places, int64."""
        return self._text_rows[places]

    def find(self, keys: Any) -> Any:
        """Row with each duplicate key (the first 8 bytes of `duplicate_key`, uint64), int64; -1 where there is none."""
        return _found(self._keys, self._key_rows, keys)

    def rendered_row(self, key: int) -> int:
        """Row with this `rendering_key`, or -1."""
        return int(_found(self._renderings, self._rendering_rows, np.array([key & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64))[0])

    def close(self) -> None:
        """Remove the texts."""
        self._path.unlink(missing_ok=True)


def _sorted(keys: Any, rows: list[int]) -> tuple[Any, Any]:
    order = np.argsort(keys, kind="stable")
    return keys[order], np.array(rows, dtype=np.int64)[order]


def _found(table: Any, rows: Any, keys: Any) -> Any:
    if not len(table):
        return np.full(len(keys), -1, dtype=np.int64)
    slots = np.minimum(np.searchsorted(table, keys), len(table) - 1)
    return np.where(table[slots] == keys, rows[slots], -1)
