"""Readers as users would write them, named in a recipe by their import path."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from dflash_assets.sources.reader import RowReader, text_column
from dflash_assets.sources.records import Draft, Reading, Records


class OwnReader(RowReader):
    """Rows with a column `prompt_text`."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The one column."""
        return ("prompt_text",)

    def draft(self, value: dict[str, Any]) -> Draft:
        """Its text as the user's message."""
        return Draft([{"role": "user", "content": text_column(value, "prompt_text")}])


class LosingReader(OwnReader):
    """A faulty reader: it yields nothing for every record after the second."""

    def read(self, records: Records) -> Iterator[Reading]:
        """Readings of the first two records."""
        all_readings = list(super().read(records))
        yield from islice(all_readings, 2)
