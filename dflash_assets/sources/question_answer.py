"""Reader `question_answer`: one column holds the question (WebInstructSub, CodeFeedback, Alpaca-like sets).

Here: column names and the cap for each original question. Not here: answers: the target model writes its own.
"""

from __future__ import annotations

from typing import Any

from pydantic import PositiveInt

from dflash_assets.sources.groups import GroupCap
from dflash_assets.sources.reader import ReaderOptions, RowReader, text_column
from dflash_assets.sources.records import Draft


class QuestionAnswerOptions(ReaderOptions):
    """Columns of a question/answer set."""

    question: str = "question"
    """Column of the question (`query` in CodeFeedback)."""
    system: str | None = None
    """Column of a system prompt; blank or absent means none."""
    tools: str | None = None
    """Column of tool specs; blank, absent and "[]" mean none."""
    language: str | None = None
    """Column of the language label."""
    group: str | None = None
    """Column of the original question, for `cap` (`orig_question` in WebInstructSub)."""
    cap: PositiveInt | None = None
    """Different prompts from one original question at most; null has no limit."""


class QuestionAnswerReader(RowReader):
    """One user message a row."""

    options_model = QuestionAnswerOptions
    options: QuestionAnswerOptions

    def __init__(self, options: QuestionAnswerOptions) -> None:
        super().__init__(options)
        self._cap = GroupCap(options.cap)

    @property
    def columns(self) -> tuple[str, ...]:
        """The question column."""
        return (self.options.question,)

    def draft(self, value: dict[str, Any]) -> Draft:
        """Draft of one row; raises RowFault."""
        options = self.options
        question = text_column(value, options.question)
        if options.group:
            self._cap.check(value.get(options.group), question)
        messages = [{"role": "user", "content": question}]
        system = value.get(options.system) if options.system else None
        if isinstance(system, str) and system.strip():
            messages.insert(0, {"role": "system", "content": system})
        label = value.get(options.language) if options.language else None
        return Draft(messages, value.get(options.tools) if options.tools else None, language=label if isinstance(label, str) else None)
