"""How fast commits get into a bucket, verified and named by its manifest, against plain boto3 that checks nothing.

    python -m benchmarks.upload            # 64 shards of 4 MB
    python -m benchmarks.upload --full     # 400 shards of 8 MB, the size of 500 answers of about 4,000 tokens

Four sides in one run, each into a prefix of its own, the same files, as many threads as the uploader uses:

    boto3 upload_file    a thread pool over `client.upload_file`, nothing read back
    boto3 put_object     the same with `client.put_object`
    ours                 what waits in a working copy goes up: lock, MD5 in transit, conditional PUT, sha256 in the metadata, read back,
                         the manifest by compare-and-swap; the measure ends when `settle` says that everything is visible
    ours, with commits   the same from the first local commit on: hashed, synced to disk, manifest replaced for each file

The server is the one AWS_ENDPOINT_URL or DFLASH_S3_ENDPOINT names, else moto in a process of its own (slow, but the same for all sides).
CPU seconds are this process's own. The last line is JSON: value is our throughput as a share of the faster boto3 side.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dflash_assets.resources.s3_client import make_client
from dflash_assets.resources.s3_store import S3Store
from dflash_assets.resources.s3_upload import THREADS
from dflash_assets.resources.store import Entry, Owner, StoreOptions
from dflash_assets.resources.working_copy import WorkingCopy

TARGET, REDUCED_TARGET = 0.7, 0.4
"""Checking costs CPU: MD5 and sha256 of each byte, one more request a file. At reduced size taking the lock and the last manifest,
about 0.3 s, weigh as much as the files."""
ROUNDS = 3
"""Rounds at reduced size; one at the stated size, where start and end no longer matter."""


def main() -> None:
    """Measure all sides in turn, several times; the best round of each counts."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--full", action="store_true", help="400 shards of 8 MB")
    full = arguments.parse_args().full
    count, size, rounds = (400, 8 << 20, 1) if full else (64, 4 << 20, ROUNDS)
    sides: dict[str, Callable[[list[Path], str, Path], Callable[[], None]]] = {
        "boto3 upload_file": by_upload_file,
        "boto3 put_object": by_put_object,
        "ours": by_uploader,
        "ours, with commits": by_commits,
    }
    best: dict[str, tuple[float, float]] = {}
    with server() as said, tempfile.TemporaryDirectory() as place:
        bucket = f"bench-{uuid.uuid4().hex[:12]}"
        make_client().create_bucket(Bucket=bucket)
        files = [Path(place) / f"shard-{number:05d}.parquet" for number in range(count)]
        for file in files:
            file.write_bytes(os.urandom(size))
        print(f"{count} files of {size / 1e6:.1f} MB to {said}, {THREADS} threads, best of {rounds} round(s)")
        for number in range(rounds):
            for name, side in sides.items():
                measured = side(files, f"{bucket}/{re.sub('[^a-z0-9]+', '-', name)}-{number}", Path(place) / f"copy-{number}-")
                began, cpu = time.perf_counter(), time.process_time()
                measured()
                found = (time.perf_counter() - began, time.process_time() - cpu)
                best[name] = min(best.get(name, found), found)
            remove(bucket)
        make_client().delete_bucket(Bucket=bucket)
    total = count * size / 1e6
    print(f"{'':<22}{'MB/s':>8}{'CPU s':>8}")
    for name, (seconds, cpu) in best.items():
        print(f"{name:<22}{total / seconds:>8.0f}{cpu:>8.2f}")
    baseline = max(total / best[name][0] for name in sides if not name.startswith("ours"))
    value = total / best["ours"][0] / baseline
    target = TARGET if full else REDUCED_TARGET
    unit = "of plain boto3's throughput, verified"
    print(
        json.dumps(
            {
                "name": "upload",
                "value": round(value, 2),
                "unit": unit,
                "target": target,
                "ok": value >= target,
                "baseline": round(baseline, 1),
            }
        )
    )


def by_upload_file(files: list[Path], place: str, _copy: Path) -> Callable[[], None]:
    """Plain boto3, the managed transfer."""
    bucket, prefix = place.split("/", 1)

    def measured() -> None:
        client = make_client()
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda file: client.upload_file(str(file), bucket, f"{prefix}/{file.name}"), files))

    return measured


def by_put_object(files: list[Path], place: str, _copy: Path) -> Callable[[], None]:
    """Plain boto3, one request a file."""
    bucket, prefix = place.split("/", 1)

    def measured() -> None:
        client = make_client()

        def put(file: Path) -> None:
            with file.open("rb") as body:
                client.put_object(Bucket=bucket, Key=f"{prefix}/{file.name}", Body=body)

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(put, files))

    return measured


def by_uploader(files: list[Path], place: str, copy: Path) -> Callable[[], None]:
    """The product's uploader over commits that wait for it. Making them is not part of the measure."""
    waiting = open_store(place, copy)
    for file in files:
        commit(waiting, waiting.working_copy, file)

    def measured() -> None:
        with waiting.lock():
            waiting.settle()
        assert waiting.state().pending_files == 0
        waiting.close()

    return measured


def by_commits(files: list[Path], place: str, copy: Path) -> Callable[[], None]:
    """The product from the commits on, which is how a run meets it."""

    def measured() -> None:
        store = open_store(place, copy)
        with store.lock():
            for file in files:
                commit(store, store, file)
            store.settle()
        store.close()

    return measured


def open_store(place: str, copy: Path) -> S3Store:
    return S3Store(
        f"s3://{place}", Owner("bench"), StoreOptions(work=str(copy.with_name(copy.name + place.split("/")[1])), mirror_journal=False)
    )


def commit(store: S3Store, target: S3Store | WorkingCopy, file: Path) -> None:
    """Commit a copy of a file (a link to it: `put` moves what it is given)."""
    new = store.work / "tmp" / file.name
    new.parent.mkdir(exist_ok=True)
    os.link(file, new)
    stored = target.put(new, f"completions/{file.stem}.0123456789ab.parquet")
    target.commit({f"completions/{file.stem}": Entry("k", "v", (stored,))})


def remove(bucket: str) -> None:
    """Empty the bucket between rounds."""
    client = make_client()
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for item in page.get("Contents", []):
            client.delete_object(Bucket=bucket, Key=item["Key"])


@contextmanager
def server() -> Iterator[str]:
    """The S3 server to use, in words; it is in this process's environment meanwhile."""
    if os.environ.get("DFLASH_S3_ENDPOINT"):
        os.environ.update(
            AWS_ENDPOINT_URL=os.environ["DFLASH_S3_ENDPOINT"],
            AWS_ACCESS_KEY_ID=os.environ["DFLASH_S3_ACCESS_KEY"],
            AWS_SECRET_ACCESS_KEY=os.environ["DFLASH_S3_SECRET_KEY"],
        )
    if os.environ.get("AWS_ENDPOINT_URL"):
        yield os.environ["AWS_ENDPOINT_URL"]
        return
    script = (
        "from moto.server import ThreadedMotoServer; s = ThreadedMotoServer('127.0.0.1', 0, verbose=False); s.start();"
        "print(s.get_host_and_port()[1], flush=True); import time; time.sleep(3600)"
    )
    process: subprocess.Popen[Any] = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        os.environ.update(AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}", AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret")
        yield "moto (a server for tests)"
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
