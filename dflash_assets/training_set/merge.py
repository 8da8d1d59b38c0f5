"""Building the training set: new rows and existing rows, checked, deduplicated, shuffled, split, written, accounted for.

Here: the order of the steps and the equation over all rows. Not here: each step (`rows`, `existing`, `limits`,
`duplicates`, `scatter`, `drift`), uploading, and the formats of trainers (`exports`).

Every row is read once. Pass one checks it and scatters it by its order key; only when all rows were seen is it known
which side of a duplicate stays, so that is decided in pass two, bucket by bucket. Peak memory is a few batches
(`scatter.BUCKET_BYTES`), plus about 100 bytes a new row and 12 bytes an existing one.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dflash_assets.errors import TrainingSetError
from dflash_assets.recipe.training_set import TrainingSetSpec
from dflash_assets.replay.following import Replay
from dflash_assets.rows import TRAINING
from dflash_assets.tables import TableWriter, canonical_json, write_text
from dflash_assets.tokens.fast import with_reference
from dflash_assets.tokens.tokenizer import TargetTokenizer
from dflash_assets.training_set.certificate import ServerRender, write_certificate
from dflash_assets.training_set.contracts import DROPPED, KEPT, SPLITS, Drop, ShardFiles, Split, TokenFacts, TrainingSetResult
from dflash_assets.training_set.duplicates import PromptIndex
from dflash_assets.training_set.existing import ExistingRows
from dflash_assets.training_set.existing_text import ExistingText
from dflash_assets.training_set.folders import publish_folder
from dflash_assets.training_set.keys import id_hashes, in_eval, order_keys, prompt_keys
from dflash_assets.training_set.limits import RowLimits
from dflash_assets.training_set.manifest import training_manifest
from dflash_assets.training_set.memory import Longest
from dflash_assets.training_set.parts import PartWriter
from dflash_assets.training_set.profile import Counted, Profile
from dflash_assets.training_set.ragged import Int64, Ragged, pc, take
from dflash_assets.training_set.rows import OnLength, training_rows
from dflash_assets.training_set.scatter import Scatter, bucket_count

Existing = ExistingRows | ExistingText

_KEYED = pa.schema([*TRAINING, *(pa.field(name, pa.uint64(), nullable=False) for name in ("order", "prompt_high", "prompt_low"))])


def build_training_set(
    shards: Sequence[ShardFiles],
    spec: TrainingSetSpec,
    facts: TokenFacts,
    out: Path,
    *,
    base_dir: Path,
    seed: int,
    on_length: OnLength,
    tokenizer: TargetTokenizer | None = None,
    server_renders: Sequence[ServerRender] = (),
    replay: Callable[[], Replay] | None = None,
) -> TrainingSetResult:
    """Build `out`/{train,eval}/part-*.parquet (TRAINING rows), manifest.json, dropped.parquet, kept.parquet and certificate.parquet.

    The order of rows and the split depend on the rows' ids, their prompts and the seed only. `out` appears, or is
    replaced, as a whole; after an exception it is as before. `base_dir` is what a relative path of the existing set is
    relative to; `tokenizer` is needed for an existing set of text and for the certificate, which is left out without it;
    `server_renders` is what servers rendered at their start; `replay` makes the prompts of later turns anew. Raises TrainingSetError: see `ExistingRows`,
    `ExistingText` and `training_rows`, and when no row is left.
    """

    def work() -> dict[str, Any]:
        build = _Build(spec, facts, out, _open_existing(spec, facts, base_dir, tokenizer), seed, on_length)
        try:
            return build.run(shards, tokenizer, server_renders, replay)
        finally:
            build.clean_up()

    manifest = work() if tokenizer is None else with_reference(tokenizer.encoder, work)
    return TrainingSetResult(out, manifest, out / "dropped.parquet", out / "kept.parquet", manifest["drift"])


class _Build:
    """The state of one build."""

    def __init__(
        self, spec: TrainingSetSpec, facts: TokenFacts, out: Path, existing: Existing | None, seed: int, on_length: OnLength
    ) -> None:
        self.spec, self.facts, self.out, self.seed = spec, facts, out, seed
        self.on_length: OnLength = on_length
        self.existing = existing
        self.limits = RowLimits.of(spec, facts.vocab_size)
        self.index = PromptIndex(spec.duplicates)
        self.profiles = {"generated": Profile(facts.vocab_size), "existing": Profile(facts.vocab_size)}
        self.duplicate = "duplicate_row" if spec.existing is None or spec.existing.id is None else "duplicate_id"
        self.dropped: Counter[tuple[str, str]] = Counter()
        self.lengths: list[Any] = []
        self.longest = Longest()
        self.seen: Counter[str] = Counter()
        self.folder = out.with_name(out.name + ".tmp")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def run(
        self,
        shards: Sequence[ShardFiles],
        tokenizer: TargetTokenizer | None,
        renders: Sequence[ServerRender],
        replay: Callable[[], Replay] | None,
    ) -> dict[str, Any]:
        scatter = Scatter(self.folder / "scratch", _KEYED, bucket_count(self._bytes_estimate(shards)))
        metadata = {"tokenizer_sha": self.facts.tokenizer_sha, "template_sha": self.facts.template_sha}
        parts: dict[Split, PartWriter] = {
            split: PartWriter(self.folder / split, TRAINING, self.spec.rows_per_file, metadata) for split in SPLITS
        }
        with TableWriter(self.folder / "dropped.parquet", DROPPED) as dropped:
            self._scatter_new(shards, scatter, dropped)
            self.index.freeze()
            self._scatter_existing(scatter, dropped)
            self._gather(scatter, parts, dropped)
        (self.folder / "scratch").rmdir()
        certificate = (
            None if tokenizer is None else write_certificate(self.folder / "certificate.parquet", shards, tokenizer, renders, replay)
        )
        manifest = training_manifest(
            parts,
            self.profiles,
            np.concatenate([np.empty(0, np.int32), *self.lengths]),
            self.seen,
            self.dropped,
            self.existing,
            self.spec,
            self.facts,
            {"seed": self.seed, "on_length": self.on_length},
            longest=self.longest,
            certificate=certificate,
        )
        write_text(self.folder / "manifest.json", canonical_json(manifest) + "\n")
        publish_folder(self.folder, self.out)
        return manifest

    def clean_up(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _bytes_estimate(self, shards: Sequence[ShardFiles]) -> int:
        total = self.existing.files.bytes_estimate() if self.existing else 0
        for shard in shards:
            meta = _metadata(shard.completions)
            for column in (meta.row_group(group).column(at) for group in range(meta.num_row_groups) for at in range(meta.num_columns)):
                if column.path_in_schema.split(".")[0] in ("prompt_ids", "output_ids"):
                    total += column.num_values * 4
        return total

    def _scatter_new(self, shards: Sequence[ShardFiles], scatter: Scatter, dropped: TableWriter) -> None:
        hashes: list[Any] = []
        for shard in shards:
            rows = training_rows(shard, self.limits, self.facts, on_length=self.on_length)
            self.seen["generated"] += rows.table.num_rows + len(rows.drops)
            self._drop(rows.drops, dropped)
            if not rows.table.num_rows:
                continue
            hashes.append(id_hashes(rows.table["id"].to_pylist()))
            table, keys, supervised = self._keyed(rows.table)
            self.index.add_new(keys, supervised, table["prompt_id"].combine_chunks())
            scatter.add(table)
        joined = np.concatenate([np.empty(0, np.uint64), *hashes])
        if len(np.unique(joined)) != len(joined):
            raise TrainingSetError(
                "an event stands in two shards", where="completions", todo="build the shards' manifest again: one shard is listed twice"
            )

    def _scatter_existing(self, scatter: Scatter, dropped: TableWriter) -> None:
        if self.existing is None:
            return
        for table in self.existing.tables():
            drops = self.existing.take_drops()
            self._drop(drops, dropped)
            self.seen["existing"] += table.num_rows + len(drops)
            violations = self.limits.violations(Ragged.from_arrow(table["input_ids"]), Ragged.from_arrow(table["loss_mask"]))
            if violations:
                names, prompts = table["id"], table["prompt_id"]
                self._drop([_existing_drop(names[v.row].as_py(), prompts[v.row].as_py(), v.reason, v.detail) for v in violations], dropped)
                table = take(table, np.delete(np.arange(table.num_rows), [violation.row for violation in violations]))
            keyed, keys, supervised = self._keyed(table)
            self.index.note_existing(self.index.locate(keys), supervised)
            scatter.add(keyed)
        self.existing.finish()

    def _keyed(self, table: Any) -> tuple[Any, Any, Any]:
        ids = Ragged.from_arrow(table["input_ids"])
        keys = prompt_keys(ids.prefixes(table["prompt_length"].to_numpy().astype(np.int64)))
        columns = [*table.columns, pa.array(order_keys(table["id"].to_pylist(), self.seed)), pa.array(keys[:, 0]), pa.array(keys[:, 1])]
        return pa.Table.from_arrays(columns, schema=_KEYED), keys, Ragged.from_arrow(table["loss_mask"]).row_counts()

    def _gather(self, scatter: Scatter, parts: dict[Split, PartWriter], dropped: TableWriter) -> None:
        kept: list[Any] = []
        for table, order in scatter.gather():
            rows = self._without_losers(table, self._without_repeated(table, order, dropped), dropped)
            names = self._prompt_names(table)
            held_out = in_eval(self.index.split_names(names.take(pa.array(rows)).to_pylist()), self.spec.eval_share)
            at = TRAINING.get_field_index("prompt_id")
            table = table.select(TRAINING.names).set_column(at, TRAINING.field(at), names)
            self._write(take(table, rows[~held_out]), "train", parts, kept)
            self._write(take(table, rows[held_out]), "eval", parts, kept)
        for part in parts.values():
            part.close()
        self._write_kept(kept)

    def _write(self, table: Any, split: Split, parts: dict[Split, PartWriter], kept: list[Any]) -> None:
        if not table.num_rows:
            return
        parts[split].write(table)
        generated = pc.equal(table["origin"], "generated")
        counted = Counted.of(table)
        self.lengths.append(counted.ids.lengths.astype(np.int32))
        self.longest.add(table, counted.ids.lengths)
        self.profiles["generated"].add(counted, generated.to_numpy())
        self.profiles["existing"].add(counted, ~generated.to_numpy())
        prompts = pc.unique(table["prompt_id"].filter(generated))
        kept.append(pa.table({"prompt_id": prompts, "split": pa.array([split] * len(prompts), pa.string())}))

    def _without_repeated(self, table: Any, order: Int64, dropped: TableWriter) -> Int64:
        """Rows of equal id share an order key, so they are neighbours; the first, a new row if there is one, stays."""
        keys = table["order"].to_numpy()[order]
        same_key = np.flatnonzero(keys[1:] == keys[:-1]) + 1
        if not len(same_key):
            return order
        keep = np.ones(len(order), np.bool_)
        first: dict[str, str] = {}
        drops: list[Drop] = []
        for place in sorted({*same_key.tolist(), *(same_key - 1).tolist()}):
            row = int(order[place])
            name, origin = table["id"][row].as_py(), table["origin"][row].as_py()
            if name in first:
                keep[place] = False
                reason = "same_id_as_new" if first[name] == "generated" else self.duplicate
                drops.append(_existing_drop(name, table["prompt_id"][row].as_py(), reason, None))
            first.setdefault(name, origin)
        self._drop(drops, dropped)
        return order[keep]

    def _without_losers(self, table: Any, rows: Int64, dropped: TableWriter) -> Int64:
        """The rows that the duplicates policy leaves."""
        positions = self._positions(table)[rows]
        existing = pc.equal(table["origin"], "existing").to_numpy()[rows]
        losers = self.index.losers(positions, existing)
        for place in np.flatnonzero(losers).tolist():
            row = int(rows[place])
            drop = _existing_drop(
                table["id"][row].as_py(), table["prompt_id"][row].as_py(), "answered_anew", f"duplicates: {self.spec.duplicates}"
            )
            self._drop([drop if existing[place] else {**drop, "origin": "generated", "reason": "existing_answer_longer"}], dropped)
        return rows[~losers]

    def _positions(self, table: Any) -> Int64:
        return self.index.locate(np.stack([table["prompt_high"].to_numpy(), table["prompt_low"].to_numpy()], axis=1))

    def _prompt_names(self, table: Any) -> Any:
        """prompt_id of each row; existing rows that stay beside new ones take the new rows' name, so that one split holds both."""
        positions = self._positions(table)
        shared = (positions >= 0) & pc.equal(table["origin"], "existing").to_numpy()
        names = table["prompt_id"].combine_chunks()
        return pc.replace_with_mask(names, pa.array(shared), self.index.names(positions[shared])) if shared.any() else names

    def _drop(self, drops: Iterable[Drop], dropped: TableWriter) -> None:
        for drop in drops:
            self.dropped[str(drop["origin"]), str(drop["reason"])] += 1
            dropped.write(drop)

    def _write_kept(self, kept: list[Any]) -> None:
        # A prompt's samples lie in different buckets but always in one split.
        with TableWriter(self.folder / "kept.parquet", KEPT) as writer:
            if kept:
                writer.write_table(pa.concat_tables(kept).group_by(["prompt_id", "split"]).aggregate([]).sort_by("prompt_id"))


def _open_existing(spec: TrainingSetSpec, facts: TokenFacts, base_dir: Path, tokenizer: TargetTokenizer | None) -> Existing | None:
    if spec.existing is None:
        return None
    if spec.existing.messages is None:
        return ExistingRows(spec.existing, facts, base_dir)
    if tokenizer is None:
        raise TrainingSetError(
            "holds text, which needs the target model's tokenizer", where=spec.existing.path, todo="give build_training_set the tokenizer"
        )
    return ExistingText(spec.existing, tokenizer, base_dir)


def _existing_drop(name: str, prompt_id: str, reason: str, detail: str | None) -> Drop:
    return {"prompt_id": prompt_id, "event_id": name, "origin": "existing", "stage": "training_set", "reason": reason, "detail": detail}


def _metadata(path: Path) -> Any:
    try:
        return pq.read_metadata(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise TrainingSetError(f"can't be read: {error}", where=str(path), todo="build the shard again") from error
