"""Files of an existing set in a bucket, as a file system that can only be read.

Here: finding objects and reading stretches of them, with the store's client (its credentials, endpoint and time limits), in pyarrow's form
of a file system, so that whatever reads local files reads these. Not here: what is in the files (`existing_files.py`).

Every stretch is asked for with the ETag that the object had when it was opened: a set that is replaced while it is read stops the
merge, instead of becoming half of one and half of the other.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from dflash_assets.errors import TrainingSetError
from dflash_assets.resources.range_file import RangeFile, ReadOnly
from dflash_assets.resources.s3_client import ATTEMPTS, Kind, S3Fault, make_client, translated

_READ_AHEAD = 4 << 20
"""Bytes of one request when a file is read in order; a larger read is one request."""
_SAID: dict[Kind, tuple[str, str]] = {
    "credentials": ("the key or secret is wrong, or has expired", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"),
    "denied": ("these credentials may not read there", "ask for reading and listing there, or use other credentials"),
    "no_bucket": ("there is no such bucket", "correct training_set.existing.path"),
    "clock": ("this machine's clock is off by more than the server allows", "set it"),
    "busy": ("the server asked for patience too often", "run again later"),
    "unreachable": ("no connection, or it was cut", "check the network and AWS_ENDPOINT_URL, and run again"),
    "missing": ("there is no such object any more", "leave the set alone while it is read, and run again"),
    "exists": ("the object was replaced while it was read", "leave the set alone while it is read, and run again"),
    "other": ("the server refused", "see the code"),
}
Result = TypeVar("Result")


def s3_files(make: Callable[[], Any] = make_client) -> Any:
    """A pyarrow file system over all buckets, paths being `bucket/key`. What fails is a TrainingSetError with the object's address."""
    return pafs.PyFileSystem(_Handler(make))


def etag_of(filesystem: Any, path: str) -> str:
    """The object's ETag, which changes when its content does."""
    return filesystem.handler.head(path)["ETag"].strip('"')


class _Handler(ReadOnly):
    def __init__(self, make: Callable[[], Any]) -> None:
        self._client = _asked("client", "s3", make)

    def head(self, path: str) -> dict[str, Any]:
        """What the server says of an object."""
        bucket, key = _split(path)
        return _asked("reading", path, lambda: self._client.head_object(Bucket=bucket, Key=key))

    def range(self, path: str, etag: str, start: int, length: int) -> bytes:
        """A stretch of an object that has still this ETag."""
        bucket, key = _split(path)

        def get() -> bytes:
            answer = self._client.get_object(Bucket=bucket, Key=key, Range=f"bytes={start}-{start + length - 1}", IfMatch=etag)
            data = answer["Body"].read()
            if len(data) != length:  # no server's error, but nothing to build on
                raise S3Fault("unreachable", "reading", path, f"{len(data)} of {length} bytes")
            return data

        return _asked("reading", path, get)

    def get_file_info(self, paths: list[str]) -> list[Any]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> Any:
        bucket, key = _split(path.rstrip("/"))
        try:
            # Asked first, since the answer to GET says what is wrong and the one to HEAD has no text.
            below = _request(
                "listing", path, lambda: self._client.list_objects_v2(Bucket=bucket, Prefix=f"{key}/" if key else "", MaxKeys=1)
            )
            if below.get("KeyCount") or not key:
                return pafs.FileInfo(path, pafs.FileType.Directory)
        except S3Fault as fault:
            if fault.kind != "denied":
                raise _error(path, fault) from None
        try:
            head = _request("reading", path, lambda: self._client.head_object(Bucket=bucket, Key=key))
        except S3Fault as fault:
            if fault.kind == "missing":
                return pafs.FileInfo(path, pafs.FileType.NotFound)
            raise _error(path, fault) from None
        return pafs.FileInfo(path, pafs.FileType.File, size=head["ContentLength"], mtime_ns=int(head["LastModified"].timestamp() * 1e9))

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        bucket, key = _split(selector.base_dir.rstrip("/"))

        def pages() -> list[dict[str, Any]]:
            found = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{key}/" if key else "")
            return [item for page in found for item in page.get("Contents", [])]

        return [
            pafs.FileInfo(f"{bucket}/{item['Key']}", pafs.FileType.File, size=item["Size"])
            for item in _asked("listing", selector.base_dir, pages)
            if not item["Key"].endswith("/")  # how some tools mark a folder
        ]

    def open_input_file(self, path: str) -> Any:
        head = self.head(path)
        file = RangeFile(partial(self.range, path, head["ETag"]), head["ContentLength"])
        return pa.PythonFile(io.BufferedReader(file, _READ_AHEAD), mode="r")

    def get_type_name(self) -> str:
        return "s3, read only"

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def _split(path: str) -> tuple[str, str]:
    bucket, _, key = path.partition("/")
    return bucket, key


def _request(what: str, path: str, ask: Callable[[], Result]) -> Result:
    """What `ask` gives; a fault that passes is tried again, since a body that breaks off is not by the client itself."""
    for attempt in range(ATTEMPTS):
        try:
            with translated(what, f"s3://{path}"):
                return ask()
        except S3Fault as fault:
            if not fault.passing or attempt == ATTEMPTS - 1:
                raise
            time.sleep(0.2 * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


def _asked(what: str, path: str, ask: Callable[[], Result]) -> Result:
    try:
        return _request(what, path, ask)
    except S3Fault as fault:
        raise _error(path, fault) from None


def _error(path: str, fault: S3Fault) -> TrainingSetError:
    said, todo = _SAID[fault.kind]
    return TrainingSetError(f"can't be read: {said} ({fault.detail})", where=f"s3://{path}", todo=todo)
