"""Export `speculators-arrow`: the prepared dataset of speculators, which then skips its own tokenisation.

`train/` and `eval/`, each a `save_to_disk` folder with input_ids list<int64>, loss_mask list<int64>, seq_len int64
(its length-sorting sampler needs the column); `ids` and `mask` store narrower types, as an existing set of another
producer has them, whose datasets can't be concatenated with other ones; `train/` also holds the token frequencies and vocabulary maps. The state
says "torch" as speculators' own does: its trainer calls `.tolist()` on what it reads, which lists don't have.

The Arrow files are written here and not by `datasets`, in its documented layout (state.json, dataset_info.json,
data-*-of-*.arrow as Arrow streams): this is one pass in constant memory, and byte for byte reproducible, where
`from_generator` first fills a cache elsewhere on disk and fingerprints its code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import PositiveInt

from dflash_assets.recipe.base import RecipeModel
from dflash_assets.tables import canonical_json, digest, write_text
from dflash_assets.training_set.contracts import SPLITS, Split
from dflash_assets.training_set.exports.base import ExportContext, TrainingSet, Written
from dflash_assets.training_set.exports.vocabulary import write_vocabulary
from dflash_assets.training_set.ragged import Ragged

_ROWS_PER_BATCH = 1000
"""`datasets` finds a row by bisecting batches: small ones make random access fast."""


class SpeculatorsArrowOptions(RecipeModel):
    """Options of `speculators-arrow`."""

    draft_vocab_size: PositiveInt | None = None
    """Size of the drafter's vocabulary: writes d2t and t2d for its most frequent ids; null: the drafter uses the target's."""
    rows_per_file: PositiveInt = 20000
    """Rows of one Arrow file (16 bytes a token, uncompressed, as the trainer maps it; 5 with narrow types)."""
    ids: Literal["int32", "int64"] = "int64"
    """Type of the token ids; speculators' own is int64."""
    mask: Literal["bool", "int8", "int32", "int64"] = "int64"
    """Type of the loss mask's values; speculators' own is int64."""
    row_format: Literal["torch", "none"] = "torch"
    """What `load_from_disk` gives: `torch` tensors, as speculators needs, or `none` for Python lists, where torch is not installed."""


class SpeculatorsArrow:
    """See the module."""

    options = SpeculatorsArrowOptions

    def write(self, training_set: TrainingSet, folder: Path, options: SpeculatorsArrowOptions, context: ExportContext) -> Written:
        """Stream the set; the order is that of the training set."""
        written = Written()
        counts = np.zeros(training_set.manifest["vocab_size"], np.int64)
        for split in SPLITS:
            place = folder / split
            place.mkdir()
            written.rows[split] = _write_dataset(training_set, split, place, options, counts if split == "train" else None)
        write_text(folder / "dataset_dict.json", json.dumps({"splits": list(SPLITS)}))
        written.notes += write_vocabulary(folder / "train", counts, options.draft_vocab_size)
        return written


def _features(options: SpeculatorsArrowOptions) -> dict[str, Any]:
    """Columns as `datasets` describes them. `Sequence` is the one spelling of a list that datasets 2, 3, 4 and 5 all read."""

    def value(kind: str) -> dict[str, str]:
        return {"dtype": kind, "_type": "Value"}

    def values(kind: str) -> dict[str, Any]:
        return {"feature": value(kind), "_type": "Sequence"}

    return {"input_ids": values(options.ids), "loss_mask": values(options.mask), "seq_len": value("int64")}


def _schema(options: SpeculatorsArrowOptions) -> Any:
    return pa.schema(
        [("input_ids", pa.list_(_arrow(options.ids))), ("loss_mask", pa.list_(_arrow(options.mask))), ("seq_len", pa.int64())],
        metadata={"huggingface": json.dumps({"info": {"features": _features(options)}})},
    )


def _arrow(kind: str) -> Any:
    return pa.type_for_alias(kind)


def _write_dataset(training_set: TrainingSet, split: Split, folder: Path, options: SpeculatorsArrowOptions, counts: Any) -> int:
    rows = sum(file["rows"] for file in training_set.manifest["files"] if file["path"].startswith(f"{split}/"))
    total = max(1, -(-rows // options.rows_per_file))
    names = [f"data-{number:05d}-of-{total:05d}.arrow" for number in range(total)]
    files = iter(names)
    schema = _schema(options)
    writer = pa.ipc.new_stream(str(folder / next(files)), schema)
    room = options.rows_per_file
    for batch in training_set.batches(split, ["input_ids", "loss_mask"]):
        ids, mask = Ragged.from_arrow(batch["input_ids"]), Ragged.from_arrow(batch["loss_mask"])
        if counts is not None:
            counts += np.bincount(ids.values[mask.values], minlength=len(counts))
        table = pa.Table.from_arrays(
            [
                Ragged(ids.values.astype(options.ids), ids.offsets).to_arrow(_arrow(options.ids)),
                Ragged(mask.values.astype(options.mask), mask.offsets).to_arrow(_arrow(options.mask)),
                pa.array(ids.lengths),
            ],
            schema=schema,
        )
        begin = 0
        while begin < table.num_rows:
            if room == 0:
                writer.close()
                writer = pa.ipc.new_stream(str(folder / next(files)), schema)
                room = options.rows_per_file
            piece = table.slice(begin, room)
            writer.write_table(piece, max_chunksize=_ROWS_PER_BATCH)
            begin += piece.num_rows
            room -= piece.num_rows
    writer.close()
    fingerprint = digest(
        canonical_json([file for file in training_set.manifest["files"] if file["path"].startswith(f"{split}/")]), length=16
    )
    write_text(
        folder / "state.json",
        json.dumps(
            {
                "_data_files": [{"filename": name} for name in names],
                "_fingerprint": fingerprint,
                "_format_columns": None,
                "_format_kwargs": {},
                "_format_type": None if options.row_format == "none" else options.row_format,
                "_output_all_columns": False,
                "_split": None,
            },
            indent=2,
        ),
    )
    write_text(
        folder / "dataset_info.json",
        json.dumps({"citation": "", "description": "", "features": _features(options), "homepage": "", "license": ""}, indent=2),
    )
    return rows
