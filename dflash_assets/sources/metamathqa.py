"""Reader `metamathqa`: MetaMathQA's `type, query, original_question, response`.

Here: the cap for each original question and the choice of augmentations. Not here: duplicates (`query` equals
`original_question` in 155,000 of 395,000 rows; the blend drops the copies). MetaMathQA-40K has no `original_question`:
the cap then has nothing to count.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import PositiveInt

from dflash_assets.sources.groups import GroupCap
from dflash_assets.sources.reader import ReaderOptions, RowReader, text_column
from dflash_assets.sources.records import Draft, RowFault


class MetaMathQaOptions(ReaderOptions):
    """What is taken from MetaMathQA."""

    cap_per_question: PositiveInt | None = None
    """Different queries from one original question at most; null has no limit (the full set has 26 on average)."""
    masked: Literal["keep", "drop"] = "keep"
    """Queries of the types *_SV and *_FOBAR, in which a number is masked as x and asked for."""


class MetaMathQaReader(RowReader):
    """One user message a row: the query."""

    options_model = MetaMathQaOptions
    options: MetaMathQaOptions

    def __init__(self, options: MetaMathQaOptions) -> None:
        super().__init__(options)
        self._cap = GroupCap(options.cap_per_question)

    @property
    def columns(self) -> tuple[str, ...]:
        """The query column; `type` and `original_question` are used when present."""
        return ("query",)

    def draft(self, value: dict[str, Any]) -> Draft:
        """Draft of one row; raises RowFault."""
        query = text_column(value, "query")
        if self.options.masked == "drop" and str(value.get("type", "")).endswith(("_SV", "_FOBAR")):
            raise RowFault("masked_query", "augmentation types SV and FOBAR are switched off in the recipe")
        self._cap.check(value.get("original_question"), query)
        return Draft([{"role": "user", "content": query}])
