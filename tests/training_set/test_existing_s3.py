"""Sets in a bucket: the rows of the same local files, never written to, and what is wrong with them or with S3 named clearly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dflash_assets.errors import TrainingSetError
from dflash_assets.recipe.training_set import ExistingSet
from dflash_assets.training_set import existing_s3
from dflash_assets.training_set.contracts import TokenFacts, TrainingSetResult
from dflash_assets.training_set.existing import ExistingRows
from dflash_assets.training_set.existing_files import ExistingFiles
from dflash_assets.training_set.merge import build_training_set
from tests.support.s3 import Proxy, Server, fresh, moto
from tests.support.training_set import FACTS, Event, read_split, spec, write_existing, write_shard

ROWS: list[dict[str, Any]] = [
    {"id": f"r{number}", "source": "old", "input_ids": [1, 7 + number, 2, 1, 20, 2], "loss_mask": [0, 0, 0, 0, 1, 1]} for number in range(5)
]
NOWHERE = Path("/nowhere")


@pytest.fixture(scope="module")
def _moto() -> Iterator[Server]:
    with moto() as server:
        yield server


@pytest.fixture
def server(_moto: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    found = fresh(_moto)
    found.use(monkeypatch)
    monkeypatch.setattr(existing_s3.time, "sleep", lambda seconds: None)
    return found


@pytest.fixture
def proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    parts = urlsplit(server.endpoint)
    between = Proxy((str(parts.hostname), int(parts.port or 80)))
    server.use(monkeypatch, AWS_ENDPOINT_URL=between.endpoint)
    yield between
    between.close()


def put(server: Server, folder: Path, prefix: str = "set") -> None:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        server.client().put_object(Bucket=server.bucket, Key=f"{prefix}/{path.relative_to(folder).as_posix()}", Body=path.read_bytes())


def parquet(server: Server, folder: Path, rows: Any = ROWS) -> None:
    write_existing(folder / "set/a.parquet", rows[:3], mask=pa.list_(pa.int8()))
    write_existing(folder / "set/b.parquet", rows[3:], mask=pa.list_(pa.int8()))
    put(server, folder / "set")


def read(url: str, facts: TokenFacts = FACTS, **settings: Any) -> list[dict[str, Any]]:
    reader = ExistingRows(ExistingSet(path=url, **settings), facts, NOWHERE)
    rows = [row for table in reader.tables() for row in table.to_pylist()]
    reader.finish()
    return rows


def test_every_form_gives_the_rows_of_the_local_set_and_the_bucket_is_left_as_it_was(server: Server, tmp_path: Path) -> None:
    import gzip

    import datasets

    parquet(server, tmp_path)
    expected = read(str(tmp_path / "set"))
    text = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines/a.jsonl").write_bytes(text)
    (tmp_path / "lines.gz").mkdir()
    (tmp_path / "lines.gz/a.jsonl.gz").write_bytes(gzip.compress(text))
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved", num_shards=2)
    for name in ("lines", "lines.gz", "saved"):
        put(server, tmp_path / name, name)
    server.client().put_object(Bucket=server.bucket, Key="set/", Body=b"")  # as some tools mark a folder
    before = server.objects()
    for path, form in (
        ("set", "parquet"),
        ("set/", "parquet"),
        ("set/*.parquet", "parquet"),
        ("lines", "jsonl"),
        ("lines/a.jsonl", "jsonl"),
        ("lines.gz", "jsonl"),
        ("saved", "arrow"),
    ):
        assert read(server.url(path), format=form) == expected, path
    assert read(server.url("set/b.parquet")) == expected[3:]
    assert server.objects() == before


def test_a_merge_reads_it_and_records_what_each_file_was(server: Server, tmp_path: Path) -> None:
    parquet(server, tmp_path)
    build_training_set([], spec(server.url("set")), FACTS, tmp_path / "out", base_dir=NOWHERE, seed=0, on_length="keep_open")
    assert {row["id"] for row in read_split(tmp_path / "out", "train")} == {row["id"] for row in ROWS}
    files = json.loads((tmp_path / "out/manifest.json").read_text())["existing"]["files"]
    assert [(file["file"], file["bytes"]) for file in files] == [
        (name, (tmp_path / "set" / name).stat().st_size) for name in ("a.parquet", "b.parquet")
    ]
    heads = [server.client().head_object(Bucket=server.bucket, Key=f"set/{name}") for name in ("a.parquet", "b.parquet")]
    assert [file["etag"] for file in files] == [head["ETag"].strip('"') for head in heads]


def test_the_digest_follows_the_content_and_not_the_time(server: Server, tmp_path: Path) -> None:
    def digest() -> str:
        return ExistingFiles(ExistingSet(path=server.url("set")), NOWHERE).content_digest()

    parquet(server, tmp_path)
    first = digest()
    put(server, tmp_path / "set")
    assert digest() == first
    parquet(server, tmp_path, [{**row, "loss_mask": [0, 0, 0, 0, 0, 1]} for row in ROWS])
    assert digest() != first


def test_what_is_not_there_is_named(server: Server, tmp_path: Path) -> None:
    with pytest.raises(TrainingSetError, match=r"no parquet file is there") as caught:
        read(server.url("nothing/at/all"))
    assert server.url("nothing/at/all") in str(caught.value)
    with pytest.raises(TrainingSetError, match=r"there is no such bucket \(NoSuchBucket\)"):
        read("s3://no-such-bucket-anywhere/set")


def test_a_truncated_object_is_named(server: Server, tmp_path: Path) -> None:
    path = write_existing(tmp_path / "x.parquet", ROWS, mask=pa.list_(pa.int8()))
    client = server.client()
    for cut in (path.read_bytes()[:-30], path.read_bytes()[:5], b""):
        client.put_object(Bucket=server.bucket, Key="cut/x.parquet", Body=cut)
        with pytest.raises(TrainingSetError, match="the file is truncated or of another format"):
            read(server.url("cut"))
    client.put_object(Bucket=server.bucket, Key="x.jsonl", Body=json.dumps(ROWS[0]).encode() + b'\n{"id": "b", "inp')
    with pytest.raises(TrainingSetError, match="line 2 is not JSON"):
        read(server.url("x.jsonl"), format="jsonl")


LONG = {"id": "long", "source": "old", "input_ids": [1, 9, 2, 1, *[30] * 199_995, 2], "loss_mask": [0] * 4 + [1] * 199_996}


def merge_table(server: Server, table: pa.Table, folder: Path) -> TrainingSetResult:
    """A merge of one new row with a set in the bucket that is this one table; whatever comes of it, the bucket is as it was."""
    pq.write_table(table, folder / "x.parquet")
    server.client().put_object(Bucket=server.bucket, Key="bad/x.parquet", Body=(folder / "x.parquet").read_bytes())
    before = server.objects()
    try:
        settings = spec(server.url("bad"), max_length=200_000)
        shards = [write_shard(folder, [Event("new")])]
        return build_training_set(shards, settings, FACTS, folder / "out", base_dir=NOWHERE, seed=0, on_length="keep_open")
    finally:
        assert server.objects() == before


@pytest.mark.parametrize("item", [pa.int32(), pa.int64(), pa.uint32(), pa.int16()], ids=str)
@pytest.mark.parametrize("outer", [pa.list_, pa.large_list, lambda item: pa.list_(item, 6)], ids=["list", "large_list", "fixed"])
def test_lists_of_every_kind_give_the_same_rows(server: Server, tmp_path: Path, item: Any, outer: Any) -> None:
    schema = pa.schema([("id", pa.string()), ("source", pa.string()), ("input_ids", outer(item)), ("loss_mask", outer(item))])
    merge_table(server, pa.Table.from_pylist(ROWS, schema), tmp_path)
    found = {row["id"]: row["input_ids"] for row in read_split(tmp_path / "out", "train") if row["source"] == "old"}
    assert found == {row["id"]: row["input_ids"] for row in ROWS}


@pytest.mark.parametrize("column", ["input_ids", "loss_mask", "id"])
def test_a_column_of_nulls_stops_the_merge_and_is_named(server: Server, tmp_path: Path, column: str) -> None:
    table = pa.Table.from_pylist([{**row, column: None} for row in ROWS])
    with pytest.raises(TrainingSetError, match=column):
        merge_table(server, table, tmp_path)


def test_an_id_that_stands_twice_stops_the_merge(server: Server, tmp_path: Path) -> None:
    with pytest.raises(TrainingSetError, match="r0"):
        merge_table(server, pa.Table.from_pylist([*ROWS, {**ROWS[0], "input_ids": [1, 50, 2, 1, 20, 2]}]), tmp_path)


def test_another_tokenizer_stops_the_merge(server: Server, tmp_path: Path) -> None:
    table = pa.Table.from_pylist(ROWS).replace_schema_metadata({"tokenizer_sha": "theirs"})
    with pytest.raises(TrainingSetError, match="tokenizer theirs, the run's tokenizer is tok"):
        merge_table(server, table, tmp_path)


def test_a_row_of_200_000_tokens_is_kept_exactly(server: Server, tmp_path: Path) -> None:
    merge_table(server, pa.Table.from_pylist([*ROWS, LONG]), tmp_path)
    [found] = [row for row in read_split(tmp_path / "out", "train") if row["id"] == "long"]
    assert found["input_ids"] == LONG["input_ids"]
    assert [int(one) for one in found["loss_mask"]] == LONG["loss_mask"]


def test_a_set_without_rows_is_a_warning(server: Server, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.string()), ("input_ids", pa.list_(pa.int32())), ("loss_mask", pa.list_(pa.int8()))])
    result = merge_table(server, schema.empty_table(), tmp_path)
    assert any("holds no rows" in warning for warning in result.manifest["warnings"])


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("SignatureDoesNotMatch", "the key or secret is wrong, or has expired"),
        ("InvalidAccessKeyId", "the key or secret is wrong, or has expired"),
        ("AccessDenied", "these credentials may not read there"),
        ("RequestTimeTooSkewed", "this machine's clock is off"),
    ],
)
def test_refusals_say_what_to_do_and_never_what_the_server_wrote(proxy: Proxy, server: Server, code: str, said: str) -> None:
    proxy.fault = lambda method, path: ("status", 403, code)
    with pytest.raises(TrainingSetError, match=said) as caught:
        read(server.url("set"))
    assert "secret-in-message" not in str(caught.value)
    assert server.secret not in str(caught.value).replace("key or secret", "")


def test_no_credentials_at_all(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(TrainingSetError, match="the key or secret is wrong"):
        read(server.url("set"))


def test_answers_that_break_off_are_asked_for_again(proxy: Proxy, server: Server, tmp_path: Path) -> None:
    parquet(server, tmp_path)
    expected, cuts = read(str(tmp_path / "set")), []

    def twice(method: str, path: str) -> tuple[Any, ...] | None:
        if method == "GET" and path.endswith("a.parquet") and len(cuts) < 2:
            cuts.append(path)
            return ("cut_answer", 40)
        return None

    proxy.fault = twice
    assert read(server.url("set")) == expected
    assert len(cuts) == 2
    proxy.fault = lambda method, path: ("refuse",) if path.endswith("b.parquet") else None
    with pytest.raises(TrainingSetError, match="no connection, or it was cut") as caught:
        read(server.url("set"))
    assert "b.parquet" in str(caught.value)


def test_a_set_replaced_while_it_is_read_stops_the_merge(server: Server, tmp_path: Path) -> None:
    offsets = np.arange(4001, dtype=np.int32) * 900
    ids, mask = np.tile(np.arange(1, 901), 4000), np.tile(np.array([0, 1], np.int8), 4000 * 450)
    lists = [pa.ListArray.from_arrays(offsets, pa.array(values)) for values in (ids, mask)]
    table = pa.table({"id": [f"r{number}" for number in range(4000)], "input_ids": lists[0], "loss_mask": lists[1]})
    (tmp_path / "set").mkdir()
    pq.write_table(table, tmp_path / "set/x.parquet", compression="none", use_dictionary=False, row_group_size=500)
    put(server, tmp_path / "set")
    tables = ExistingRows(ExistingSet(path=server.url("set")), FACTS, NOWHERE).tables()
    next(tables)
    server.client().put_object(Bucket=server.bucket, Key="set/x.parquet", Body=(tmp_path / "set/x.parquet").read_bytes() + b" ")
    with pytest.raises(TrainingSetError, match="was replaced while it was read"):
        list(tables)
