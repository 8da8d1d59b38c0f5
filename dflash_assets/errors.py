"""The errors a person sees: what is wrong, where, and what to do about it.

Here: the base of every expected failure. Not here: row-level faults (those are reason codes in a table, never
exceptions) and engine errors (`resources.engines.base`).
"""

from __future__ import annotations


class AssetsError(Exception):
    """An expected failure. `str()` of it is the whole answer to the user; a traceback never is.

    `exit_code` is what the command line ends with: 2 for a recipe or an argument that must be changed, 1 for a run that failed.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, todo: str | None = None) -> None:
        self.what, self.where, self.todo = what, where, todo
        lines = [f"{where}: {what}" if where else what]
        if todo:
            lines.append(f"  -> {todo}")
        super().__init__("\n".join(lines))


class RecipeError(AssetsError):
    """The recipe can't be used as it is."""

    exit_code = 2


class SourceError(AssetsError):
    """A source can't be read at all (missing file, no access, every row of another schema)."""


class TokenizerError(AssetsError):
    """Tokenizer or chat template can't be loaded, or doesn't fit the data."""


class StoreError(AssetsError):
    """The store refuses, is locked, or holds something else than the manifest says."""


class GenerationError(AssetsError):
    """Answering prompts stopped before its end."""


class TrainingSetError(AssetsError):
    """The training set can't be built from what there is."""
