"""What a reader is: the protocol, its options, and the base of readers that look at one row at a time.

Here: the contract a new format fulfils. Not here: the formats (a module each) and how a recipe names them
(`registry`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

from dflash_assets.recipe.base import RecipeModel
from dflash_assets.sources.literals import NotPlain, parse_json
from dflash_assets.sources.records import Draft, RawRecord, Reading, Records, RowFault


class ReaderOptions(RecipeModel):
    """Base of a reader's options: the `options` of its source in the recipe; unknown keys are refused."""


class Reader(Protocol):
    """One upstream schema. A class with these members can be named in a recipe as `package.module:Class`."""

    options_model: ClassVar[type[ReaderOptions]]
    """Model of `options` in the recipe."""

    def __init__(self, options: Any) -> None:
        """Takes an instance of `options_model`."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns the reader needs, for the message of a source in which no row fits."""
        ...

    def read(self, records: Records) -> Iterator[Reading]:
        """One draft or fault for every record, in any order, in memory bounded by keys, not by texts."""
        ...


class RowReader(ABC):
    """A reader that needs to see one row only: implement `columns` and `draft`."""

    options_model: ClassVar[type[ReaderOptions]] = ReaderOptions

    def __init__(self, options: Any) -> None:
        self.options = options

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """Columns the reader needs."""

    @abstractmethod
    def draft(self, value: dict[str, Any]) -> Draft:
        """Draft of one row; raises RowFault."""

    def read(self, records: Records) -> Iterator[Reading]:
        """Row by row."""
        for record in records:
            yield record, read_one(self, record)


def read_one(reader: RowReader, record: RawRecord) -> Draft | RowFault:
    """Draft of one record, or its fault: the decoder's own or the reader's."""
    if record.fault is not None:
        return record.fault
    try:
        return reader.draft(record.value)
    except RowFault as fault:
        return fault


def text_column(value: dict[str, Any], name: str) -> str:
    """A column that must be text. Raises RowFault: schema_mismatch (absent), null_prompt (null), type_mismatch."""
    if name not in value:
        raise RowFault("schema_mismatch", f"no column {name!r}; the row has {', '.join(sorted(map(str, value))) or 'none'}")
    found = value[name]
    if found is None:
        raise RowFault("null_prompt", f"column {name!r}: content is null")
    if not isinstance(found, str):
        raise RowFault("type_mismatch", f"column {name!r} holds {type(found).__name__}, not text")
    return found


def list_column(value: dict[str, Any], name: str, flags: set[str]) -> list[Any]:
    """A column that must be a list; JSON text of a list is accepted and flagged `json_text_parsed`."""
    if name not in value:
        raise RowFault("schema_mismatch", f"no column {name!r}; the row has {', '.join(sorted(map(str, value))) or 'none'}")
    found = value[name]
    if isinstance(found, str) and found.lstrip().startswith("["):
        try:
            found, changes = parse_json(found)
        except NotPlain as error:
            raise RowFault("type_mismatch", f"column {name!r} holds text that is no JSON list: {error}") from None
        flags.update(("json_text_parsed", *changes))
    if found is None:
        raise RowFault("empty_prompt", f"column {name!r} is null")
    if not isinstance(found, list):
        raise RowFault("type_mismatch", f"column {name!r} holds {type(found).__name__}, not a list")
    return found
