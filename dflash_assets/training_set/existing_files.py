"""Streaming the files of an existing training set, whatever holds them.

Here: finding the files (folder, glob, one file; local or s3://), reading Parquet, Arrow (`save_to_disk`) and JSONL in
bounded batches, and naming file and row of each. Not here: what the columns must hold (`existing.py`), and requests to S3
(`existing_s3.py`). Nothing in this module opens a file for writing.
"""

from __future__ import annotations

import codecs
import fnmatch
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from dflash_assets.errors import TrainingSetError
from dflash_assets.recipe.training_set import ExistingSet
from dflash_assets.tables import digest, file_sha256
from dflash_assets.training_set.existing_s3 import etag_of, s3_files

OUR_FORMAT = "dflash-assets training set"
"""Beginning of `format` in the manifest of a set of ours."""
_BATCH_BYTES = 16 << 20
_MOST_ROWS = 8192
_SUFFIXES = {"parquet": (".parquet",), "arrow": (".arrow",), "jsonl": (".jsonl", ".jsonl.gz", ".jsonl.zst")}


@dataclass(frozen=True, slots=True)
class Piece:
    """A batch of rows as stored: `table` with the columns asked for, from `file`, its first row being number `row` there."""

    table: Any
    file: str
    row: int


class ExistingFiles:
    """The files of an existing set, in the order of their names.

    Raises TrainingSetError when there is nothing at the path, or (while reading) when a file is truncated or not of its format.
    """

    def __init__(self, spec: ExistingSet, base_dir: Path) -> None:
        self.spec = spec
        self._fs, self._root = _filesystem(spec.path, base_dir)
        self.files = self._find()
        if not self.files and not self._says_empty():
            raise TrainingSetError(f"no {spec.format} file is there", where=spec.path, todo="correct training_set.existing.path or .format")

    def bytes_estimate(self) -> int:
        """Bytes of ids and masks in memory, roughly: from Parquet footers, else from the file sizes."""
        total = 0
        for name in self.files:
            if self.spec.format == "parquet":
                with self._parquet(name) as file:
                    meta = file.metadata
                    if self.spec.messages is not None:  # a token of text takes about as many bytes as its id
                        total += sum(meta.row_group(group).total_byte_size for group in range(meta.num_row_groups))
                        continue
                    wanted = {self.spec.input_ids, self.spec.loss_mask}
                    total += sum(
                        column.num_values * (4 if column.path_in_schema.split(".")[0] == self.spec.input_ids else 1)
                        for group in range(meta.num_row_groups)
                        for column in (meta.row_group(group).column(at) for at in range(meta.num_columns))
                        if column.path_in_schema.split(".")[0] in wanted
                    )
            else:
                total += self._fs.get_file_info(name).size
        return total

    def content_digest(self) -> str:
        """Changes when the set does."""
        return digest(*(":".join(str(value) for key, value in stamp.items() if key != "bytes") for stamp in self.stamps()))

    def stamps(self) -> list[dict[str, Any]]:
        """What each file was: {file, bytes} and `sha256` of a local one, of a remote one, which may be large, what its server vouches
        for: `etag` in S3, elsewhere size and `changed` (nanoseconds)."""
        stamps: list[dict[str, Any]] = []
        for name in self.files:
            info = self._fs.get_file_info(name)
            stamp: dict[str, Any] = {"file": self.label(name), "bytes": info.size}
            if isinstance(self._fs, pafs.LocalFileSystem):
                stamp["sha256"] = file_sha256(Path(name))
            elif self.spec.path.startswith("s3://"):
                stamp["etag"] = etag_of(self._fs, name)
            else:
                stamp["changed"] = f"{info.size}:{info.mtime_ns}"
            stamps.append(stamp)
        return stamps

    def columns(self) -> list[str]:
        """Column names of the first file (of its first line, for JSONL)."""
        if not self.files:
            return self._described()
        name = self.files[0]
        if self.spec.format == "parquet":
            with self._parquet(name) as file:
                return list(file.schema_arrow.names)
        if self.spec.format == "arrow":
            with self._fs.open_input_file(name) as raw, _stream(raw, name) as reader:
                return list(reader.schema.names)
        return next((list(row) for _, row in self._lines(name)), [])

    def pieces(self, columns: list[str]) -> Iterator[Piece]:
        """All rows, in batches of about 16 MB; a column that one file lacks is missing in its tables."""
        for name in self.files:
            read = {"parquet": self._read_parquet, "arrow": self._read_arrow, "jsonl": self._read_jsonl}[self.spec.format]
            row = 0
            for table in read(name, columns):
                yield Piece(table, self.label(name), row)
                row += table.num_rows

    def label(self, name: str) -> str:
        """A file's path as people know it: relative to the set's folder."""
        return name.removeprefix(self._root.rstrip("/") + "/") if name != self._root else name.rsplit("/", 1)[-1]

    def declared(self, key: str) -> str | None:
        """What the set says about itself: `key` in manifest.json in its folder or the one above, else in the first Parquet footer."""
        folder = self.files[0].rsplit("/", 1)[0] if self.files else self._root
        for place in (folder, folder.rsplit("/", 1)[0]):
            manifest = self._manifest(place)
            for table in (manifest, manifest.get("fingerprints")):
                if isinstance(table, dict) and isinstance(table.get(key), str):
                    return table[key]
        if self.spec.format == "parquet":
            with self._parquet(self.files[0]) as file:
                value = (file.schema_arrow.metadata or {}).get(key.encode())
                return value.decode() if value else None
        return None

    def _find(self) -> list[str]:
        suffixes = _SUFFIXES[self.spec.format]
        if any(sign in self._root for sign in "*?["):
            folder = self._root[: min(self._root.find(sign) for sign in "*?[" if sign in self._root)].rsplit("/", 1)[0]
            found = self._fs.get_file_info(pafs.FileSelector(folder or "/", allow_not_found=True, recursive=True))
            return sorted(info.path for info in found if info.type == pafs.FileType.File and fnmatch.fnmatchcase(info.path, self._root))
        info = self._fs.get_file_info(self._root)
        if info.type == pafs.FileType.File:
            return [self._root]
        if info.type != pafs.FileType.Directory:
            return []
        if self.spec.format == "arrow":
            return self._find_arrow()
        manifest = self._manifest(self._root)
        if self.spec.format == "parquet" and str(manifest.get("format", "")).startswith(OUR_FORMAT):
            return sorted(
                f"{self._root}/{entry['path']}" for entry in manifest["files"]
            )  # beside them lie tables that are no training rows
        found = self._fs.get_file_info(pafs.FileSelector(self._root, recursive=True))
        return sorted(info.path for info in found if info.type == pafs.FileType.File and info.path.endswith(suffixes))

    def _manifest(self, folder: str) -> dict[str, Any]:
        path = f"{folder}/manifest.json"
        if self._fs.get_file_info(path).type != pafs.FileType.File:
            return {}
        with self._fs.open_input_file(path) as file:
            try:
                manifest = json.loads(file.read())
            except ValueError as error:
                raise TrainingSetError(f"is not JSON: {error}", where=path, todo="repair it, or move it away") from error
        return manifest if isinstance(manifest, dict) else {}

    def _find_arrow(self) -> list[str]:
        if self._fs.get_file_info(f"{self._root}/dataset_dict.json").type == pafs.FileType.File:
            raise TrainingSetError(
                "holds several splits", where=self.spec.path, todo="name one: path: " + self.spec.path.rstrip("/") + "/train"
            )
        state = f"{self._root}/state.json"
        if self._fs.get_file_info(state).type != pafs.FileType.File:
            raise TrainingSetError(
                "has no state.json, so it is no `save_to_disk` folder",
                where=self.spec.path,
                todo="correct training_set.existing.path or .format",
            )
        with self._fs.open_input_file(state) as file:
            data = json.loads(file.read())
        # Names in state.json, not the listing: `save_to_disk` over an older set leaves files of the old one behind.
        return [f"{self._root}/{entry['filename']}" for entry in data["_data_files"]]

    def _says_empty(self) -> bool:
        """A `save_to_disk` folder of no rows holds no file of them."""
        return self.spec.format == "arrow" and self._fs.get_file_info(f"{self._root}/state.json").type == pafs.FileType.File

    def _described(self) -> list[str]:
        """Columns that `save_to_disk` says there are."""
        with self._fs.open_input_file(f"{self._root}/dataset_info.json") as file:
            return list(json.loads(file.read()).get("features") or {})

    def _parquet(self, name: str) -> Any:
        try:
            return pq.ParquetFile(self._fs.open_input_file(name), pre_buffer=False)
        except (OSError, pa.ArrowInvalid) as error:
            raise _broken(name, error) from error

    def _read_parquet(self, name: str, columns: list[str]) -> Iterator[Any]:
        with self._parquet(name) as file:
            there = [column for column in columns if column in file.schema_arrow.names]
            meta = file.metadata
            size = sum(meta.row_group(group).total_byte_size for group in range(meta.num_row_groups))
            rows = max(1, min(_MOST_ROWS, _BATCH_BYTES * meta.num_rows // max(1, size)))
            try:
                for batch in file.iter_batches(batch_size=rows, columns=there):
                    yield pa.Table.from_batches([batch])
            except (OSError, pa.ArrowInvalid) as error:
                raise _broken(name, error) from error

    def _read_arrow(self, name: str, columns: list[str]) -> Iterator[Any]:
        with self._fs.open_input_file(name) as raw, _stream(raw, name) as reader:
            try:
                for batch in reader:
                    table = pa.Table.from_batches([batch])
                    table = table.select([column for column in columns if column in table.column_names])
                    rows = max(1, min(_MOST_ROWS, _BATCH_BYTES * table.num_rows // max(1, table.nbytes)))
                    for begin in range(0, table.num_rows, rows):
                        yield table.slice(begin, rows)
            except (OSError, pa.ArrowInvalid) as error:
                raise _broken(name, error) from error

    def _read_jsonl(self, name: str, columns: list[str]) -> Iterator[Any]:
        rows: list[dict[str, Any]] = []
        size = 0
        for length, row in self._lines(name):
            rows.append(row)
            size += length
            if size >= _BATCH_BYTES or len(rows) >= _MOST_ROWS:
                yield _from_json(rows, columns, name)
                rows, size = [], 0
        if rows:
            yield _from_json(rows, columns, name)

    def _lines(self, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
        with self._fs.open_input_stream(name, buffer_size=1 << 20) as stream:
            number = 0
            for line in _split_lines(stream):
                number += 1
                line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if not line.strip():
                    continue
                try:
                    row = orjson.loads(line)
                except orjson.JSONDecodeError as error:
                    raise TrainingSetError(
                        f"line {number} is not JSON: {error}", where=self.label(name), todo="repair or remove the line"
                    ) from error
                if not isinstance(row, dict):
                    raise TrainingSetError(f"line {number} is not an object", where=self.label(name), todo="repair or remove the line")
                yield len(line), row


def _filesystem(path: str, base_dir: Path) -> tuple[Any, str]:
    if path.startswith("s3://"):
        return s3_files(), path.removeprefix("s3://").rstrip("/")
    if "://" in path:
        try:
            return pafs.FileSystem.from_uri(path)
        except (OSError, pa.ArrowInvalid) as error:
            raise TrainingSetError(
                f"can't be reached: {error}", where=path, todo="correct training_set.existing.path or the access to it"
            ) from error
    return pafs.LocalFileSystem(), str((base_dir / path).absolute())


def _split_lines(stream: Any) -> Iterator[bytes]:
    # On b"\n" alone: U+2028, U+0085 and the like may stand inside JSON strings.
    rest = b""
    while block := stream.read(1 << 20):
        lines = (rest + block).split(b"\n")
        rest = lines.pop()
        yield from lines
    if rest:
        yield rest


def _from_json(rows: list[dict[str, Any]], columns: list[str], name: str) -> Any:
    arrays: dict[str, Any] = {}
    for column in columns:
        if not any(column in row for row in rows):
            continue
        try:
            values = [row.get(column) for row in rows]
            if any(_holds_objects(value) for value in values):
                # As text: Arrow structs would pad every object with the keys of all others (huggingface/datasets#7617).
                values = [None if value is None else json.dumps(value, ensure_ascii=False) for value in values]
            arrays[column] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise TrainingSetError(
                f"column {column!r} holds values of different types: {error}", where=name, todo="repair the file"
            ) from error
    return pa.table(arrays) if arrays else pa.table({"": pa.nulls(len(rows))}).select([])


def _holds_objects(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and len(value) > 0 and isinstance(value[0], dict))


def _stream(raw: Any, name: str) -> Any:
    try:
        return pa.ipc.open_stream(raw)
    except (OSError, pa.ArrowInvalid) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> TrainingSetError:
    return TrainingSetError(f"can't be read: {error}", where=name, todo="the file is truncated or of another format; replace it")
