"""What an export is: the protocol every format implements, and what it is given and gives back.

Here: protocols, context, results, reading a finished training set. Not here: choosing and running an export
(`export.py`), joining rows with their conversations (`conversations.py`), the formats.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from dflash_assets.errors import TrainingSetError
from dflash_assets.recipe.base import RecipeModel
from dflash_assets.replay.following import Replay
from dflash_assets.training_set.contracts import ShardFiles, Split
from dflash_assets.training_set.existing_files import OUR_FORMAT

_BATCH_BYTES = 16 << 20


class SplitCall(Protocol):
    """One tool call of an answer."""

    @property
    def name(self) -> str: ...
    @property
    def arguments(self) -> Any:
        """Decoded JSON, a dict unless the model wrote something else."""
        ...


class SplitAnswer(Protocol):
    """An answer taken apart."""

    @property
    def reasoning(self) -> str: ...
    @property
    def content(self) -> str:
        """Without reasoning, tool calls and end token."""
        ...

    @property
    def calls(self) -> Sequence[SplitCall]: ...
    @property
    def faults(self) -> Sequence[object]:
        """Malformations; an answer with any of them can't be written as messages."""
        ...


class AnswerSplitter(Protocol):
    """Takes the engine's raw text of an answer apart. Total: it never raises. XML calls get their types from the tools' schemas."""

    def __call__(self, text: str, *, thinking: bool, tools: list[dict[str, Any]] | None) -> SplitAnswer: ...


@dataclass(frozen=True, slots=True)
class ExportContext:
    """What an export may need beyond the training set; a format that lacks something it needs says so."""

    name: str
    """Name of the recipe: title of the card, prefix of file names."""
    shards: Sequence[ShardFiles] = ()
    """The shards the set was built from, for formats made of messages."""
    splitter: AnswerSplitter | None = None
    replay: Callable[[], Replay] | None = None
    """How conversations were replayed, for the histories of their later turns; None where none was."""
    decode: Callable[[Sequence[int]], str] | None = None
    """Exact text of token ids, special tokens kept."""
    encode: Callable[[Sequence[str]], list[list[int]]] | None = None
    """Token ids of texts, special tokens recognised, nothing added."""
    training_template: str | None = None
    """Chat template with generation marks, for trainers that derive the mask from it."""
    description: str = ""
    model: str = ""
    model_revision: str | None = None
    licences: Mapping[str, str] = field(default_factory=dict)
    """Source -> licence."""
    revisions: Mapping[str, str] = field(default_factory=dict)
    """Source -> repository and commit, or path, it was read from."""
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Written:
    """What a format reports after writing its files."""

    rows: Counter[str] = field(default_factory=Counter[str])
    """Rows written, by split."""
    left_out: Counter[str] = field(default_factory=Counter[str])
    """Rows of the training set that aren't in the export, by reason."""
    notes: list[str] = field(default_factory=list[str])
    """What a reader of the export must know, in sentences."""
    data_files: dict[str, str] = field(default_factory=dict[str, str])
    """Split -> glob of the files `datasets.load_dataset` reads; empty for formats it doesn't."""


@dataclass(frozen=True, slots=True)
class ExportResult:
    """A finished export."""

    kind: str
    folder: Path
    files: list[dict[str, Any]]
    """{path, sha256, bytes} of each file but manifest.json."""
    rows: dict[str, int]
    left_out: dict[str, int]
    notes: list[str]


class Export(Protocol):
    """One format. `options` is the model of its options; `write` streams the set into an existing, empty folder."""

    options: type[RecipeModel]

    def write(self, training_set: TrainingSet, folder: Path, options: Any, context: ExportContext) -> Written: ...


class TrainingSet:
    """A finished training set, read batch by batch. Raises TrainingSetError when the folder holds none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TrainingSetError(f"no training set is there: {error}", where=str(folder), todo="build the training set first") from error
        if not str(self.manifest.get("format", "")).startswith(OUR_FORMAT):
            raise TrainingSetError(
                "manifest.json is not that of a training set", where=str(folder), todo="name the folder that holds train/ and eval/"
            )

    def files(self, split: Split) -> list[Path]:
        """Part files of a split, in order."""
        return [self.folder / file["path"] for file in self.manifest["files"] if file["path"].startswith(f"{split}/")]

    def batches(self, split: Split, columns: list[str] | None = None) -> Iterator[Any]:
        """RecordBatches of a split, in its order, of about 16 MB."""
        for path in self.files(split):
            try:
                with pq.ParquetFile(path, pre_buffer=False) as file:
                    size = sum(file.metadata.row_group(group).total_byte_size for group in range(file.metadata.num_row_groups))
                    yield from file.iter_batches(max(1, min(8192, _BATCH_BYTES * file.metadata.num_rows // max(1, size))), columns=columns)
            except (OSError, pa.ArrowInvalid) as error:
                raise TrainingSetError(f"can't be read: {error}", where=str(path), todo="build the training set again") from error
