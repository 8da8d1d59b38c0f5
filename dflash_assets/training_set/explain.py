"""Showing one training row to a person: every token, what is supervised, where the generation boundary is.

Here: finding the row, cutting it into tokens with their text, terminal and HTML forms. Not here: the command that
prints them (`dflash_assets.cli`). Text of users and models is data: it is escaped, never interpreted as markup.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from dflash_assets.errors import TrainingSetError
from dflash_assets.training_set.contracts import SPLITS
from dflash_assets.training_set.exports.base import TrainingSet
from dflash_assets.training_set.ragged import pc

if TYPE_CHECKING:
    from rich.text import Text

_INVISIBLE = {"\n": "\\n\n", "\t": "\\t", "\r": "\\r"}
_STYLE = (
    "body{font:14px/1.6 ui-monospace,monospace;margin:2em;max-width:90ch}span{white-space:pre-wrap}.s{background:#c9ecd1}"
    ".p{color:#666}.c{outline:1px solid #b55}.b{border-left:3px solid #b00;margin:0 2px}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}.s{background:#1d4d2a}.p{color:#999}}"
)


@dataclass(frozen=True, slots=True)
class Token:
    """One token of a row: its id, its text, whether the loss counts it, whether it is a control token of the vocabulary."""

    id: int
    text: str
    supervised: bool
    special: bool


def find_row(folder: Path, row_id: str) -> tuple[str, dict[str, Any]]:
    """(split, row) of the training set in `folder` whose `id` is `row_id`, or begins with it when only one does.

    Reads the ids first and then only the row group that holds the row. Raises TrainingSetError when no row or several fit.
    """
    training_set = TrainingSet(folder)
    found: list[tuple[str, Path, int, int, str]] = []
    for split in SPLITS:
        for path in training_set.files(split):
            with pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    ids = file.read_row_group(group, columns=["id"])["id"]
                    hits = pc.indices_nonzero(pc.starts_with(ids.combine_chunks(), row_id)).to_pylist()
                    found += [(split, path, group, row, ids[row].as_py()) for row in hits]
    exact = [place for place in found if place[-1] == row_id]
    if len(exact or found) != 1:
        shown = ", ".join(place[-1] for place in found[:5])
        what = f"{len(found)} rows begin with {row_id!r}: {shown}" if found else f"no row has the id {row_id!r}"
        raise TrainingSetError(what, where=str(folder), todo="give the whole id; dropped.parquet lists what was left out, and why")
    split, path, group, row, _ = (exact or found)[0]
    with pq.ParquetFile(path) as file:
        return split, file.read_row_group(group).slice(row, 1).to_pylist()[0]


def tokens_of(
    input_ids: Sequence[int], loss_mask: Sequence[bool | int], decode: Callable[[Sequence[int]], str], special_ids: Collection[int]
) -> list[Token]:
    """The tokens of a row. A character spread over several tokens (an emoji, say) is shown with the last of them, the others as `·`."""
    result: list[Token] = []
    held: list[int] = []
    for token, supervised in zip(input_ids, loss_mask, strict=True):
        special = token in special_ids
        text = decode([*held, token])
        cut = text.endswith("\ufffd") and not special and len(held) < 3  # UTF-8 needs 4 bytes at most
        held = [*held, token] if cut else []
        result.append(Token(token, "·" if cut else text, bool(supervised), special))
    return result


def stretches(tokens: Sequence[Token]) -> Iterator[tuple[bool, Sequence[Token]]]:
    """Runs of equal mask, in order: (supervised, tokens)."""
    begin = 0
    for at in range(1, len(tokens) + 1):
        if at == len(tokens) or tokens[at].supervised != tokens[begin].supervised:
            yield tokens[begin].supervised, tokens[begin:at]
            begin = at


def as_text(tokens: Sequence[Token]) -> Text:
    """For the terminal: supervised tokens green, neighbours in two shades, control tokens reversed, `▏` at every boundary of the mask."""
    from rich.text import Text

    text = Text()
    place = 0
    for supervised, run in stretches(tokens):
        if place:
            text.append("▏", style="bold red")
        for token in run:
            shade = ("green" if place % 2 else "bright_green") if supervised else ("bright_black" if place % 2 else "white")
            text.append(_visible(token.text), style=f"reverse {shade}" if token.special else shade)
            place += 1
    return text


def as_html(title: str, tokens: Sequence[Token]) -> str:
    """A page of its own, without scripts or anything loaded from elsewhere; each token's id and position in its tooltip."""
    parts: list[str] = []
    place = 0
    for supervised, run in stretches(tokens):
        if place:
            parts.append('<i class="b" title="boundary of the loss mask"></i>')
        for token in run:
            kind = ("s" if supervised else "p") + (" c" if token.special else "")
            parts.append(f'<span class="{kind}" title="{place}: id {token.id}">{html.escape(_visible(token.text))}</span>')
            place += 1
    count = sum(token.supervised for token in tokens)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
        f"<h1>{html.escape(title)}</h1><p>{len(tokens)} tokens, {count} supervised (green).</p><div>{''.join(parts)}</div></html>\n"
    )


def _visible(text: str) -> str:
    return "".join(_INVISIBLE.get(character, character if character.isprintable() else f"\\u{ord(character):04x}") for character in text)
