"""One prefix of a bucket: objects put whole and verified, read whole and verified.

Here: requests, each with the checks that make its result certain on servers that differ. Not here: which objects there
should be (`s3_store.py`), who may write (`s3_lease.py`).

What servers agree on is little: some ignore conditional PUT, Ceph ignores it for CompleteMultipartUpload, several refuse or
drop checksum trailers, DeleteObjects isn't everywhere. So a body carries its MD5 (checked by the server), its sha256
stands in the metadata, and afterwards size, sha256 and ETag are read back; a conditional PUT is asked for, never trusted.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from dflash_assets.resources.manifest import StoredFile, StoreFault
from dflash_assets.resources.s3_client import S3Fault, make_client, translated

SINGLE_BYTES = 64 << 20
"""Files up to this size go up in one conditional PUT; larger ones in parts."""
PART_BYTES = 16 << 20
CHUNK_BYTES = 1 << 20
READ_ATTEMPTS = 4
QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True)
class Found:
    """An object as listed or asked about. `sha256` is what its metadata claims, None in listings."""

    path: str
    bytes: int
    etag: str
    age: float
    """Seconds since it was written, both times by the server's clock; in listings by ours."""
    sha256: str | None = None


class Bucket:
    """Everything under `s3://<bucket>/<prefix>`; paths are relative to the prefix."""

    def __init__(self, url: str, make: Callable[[], Any] = make_client) -> None:
        """`make` makes the client when it is first needed. Raises StoreFault for an address without a bucket."""
        found = re.fullmatch(r"s3://([^/]+)/?(.*)", url)
        if found is None:
            raise StoreFault(f"{url}: no bucket in it; write s3://bucket/prefix/")
        self.name, prefix = found.group(1), found.group(2).strip("/")
        self.prefix = f"{prefix}/" if prefix else ""
        self._make, self._client = make, None
        self._making = threading.Lock()
        self._bare_etags = False
        """The server wants ETags without quotation marks in conditions, against RFC 9110."""

    @property
    def client(self) -> Any:
        """The S3 client, made when first needed."""
        with self._making:
            if self._client is None:
                self._client = self._make()
            return self._client

    def url(self, path: str = "") -> str:
        """`s3://bucket/prefix/path`."""
        return f"s3://{self.name}/{self.prefix}{path}"

    def _ask(self, operation: str, path: str, what: str, **arguments: Any) -> dict[str, Any]:
        with translated(what, self.url(path)):
            return getattr(self.client, operation)(Bucket=self.name, **arguments)

    # -- small objects that change ------------------------------------------------------------------------------------

    def put_bytes(self, path: str, data: bytes, *, if_etag: str | None = None, if_absent: bool = False) -> str:
        """Write a small object, on the condition that it is still the one with `if_etag`, or absent. Returns its ETag.

        Raises S3Fault of kind `exists` when the condition fails, on servers that look at it.
        """
        condition: dict[str, str] = {"IfNoneMatch": "*"} if if_absent else {}
        if if_etag:
            condition = {"IfMatch": if_etag if self._bare_etags else f'"{if_etag}"'}
        try:
            return self._put(path, data, condition)
        except S3Fault as fault:
            if fault.kind != "exists" or not if_etag or self._bare_etags:
                raise
            there = self.head(path)
            if there is None or there.etag != if_etag:
                raise
        # Unchanged, and yet refused: Ceph 16 compares the quotation marks, too.
        etag = self._put(path, data, {"IfMatch": if_etag})
        self._bare_etags = True
        return etag

    def _put(self, path: str, data: bytes, condition: dict[str, str]) -> str:
        answer = self._ask(
            "put_object", path, "can't be written", Key=self.prefix + path, Body=data, ContentMD5=_base64_md5(data), **condition
        )
        return _bare(answer["ETag"])

    def get_bytes(self, path: str) -> tuple[bytes, Found] | None:
        """A small object, None when there is none."""
        for attempt in range(READ_ATTEMPTS):
            try:
                answer = self._ask("get_object", path, "can't be read", Key=self.prefix + path)
                with translated("can't be read", self.url(path)):
                    data = answer["Body"].read()
                if len(data) == answer["ContentLength"]:
                    return data, _found(path, answer)
            except S3Fault as fault:
                if fault.kind == "missing":
                    return None
                if not fault.passing or attempt == READ_ATTEMPTS - 1:
                    raise
            time.sleep(0.2 * 2**attempt)
        raise S3Fault("unreachable", "can't be read", self.url(path), "cut short each time")

    # -- data files ----------------------------------------------------------------------------------------------------

    def put_file(self, local: Path, file: StoredFile, *, in_the_way: Callable[[str], None] = lambda path: None) -> str:
        """Upload an immutable file, unless it is there already, and verify it. Returns its ETag.

        An object of this name with other content is moved to quarantine: names are made from content, so it is wrong.
        `in_the_way` is called with its path before, and may raise to forbid it.
        Raises StoreFault when the local file isn't what `file` says, S3Fault when it can't be uploaded or isn't there then.
        """
        md5, sha, size = _hashes(local)
        if (size, sha) != (file.bytes, file.sha256):
            raise StoreFault(f"{local}: changed since it was committed (sha256 {sha[:12]}, the manifest says {file.sha256[:12]})")
        if size > SINGLE_BYTES:
            there = self.head(file.path)
            if there is not None and self._is_whole(there, file, None):
                return there.etag
            if there is not None:
                in_the_way(file.path)
                self.quarantine(file.path, allowed=in_the_way)
            self._put_parts(local, file)
        else:
            try:
                self._put_single(local, file, md5, if_absent=True)
            except S3Fault as fault:
                if fault.kind != "exists":
                    raise
                there = self.head(file.path)
                if there is not None and self._is_whole(there, file, md5):
                    return there.etag
                if there is not None:
                    in_the_way(file.path)
                    self.quarantine(file.path, allowed=in_the_way)
                self._put_single(local, file, md5, if_absent=False)
        there = self.head(file.path)
        if there is None or not self._is_whole(there, file, md5):
            # A passing fault: whoever uploads tries again, and finds the damaged object in its way.
            raise S3Fault("busy", "isn't what was sent", self.url(file.path), f"{there.bytes if there else 0} of {file.bytes} bytes")
        return there.etag

    def _put_single(self, local: Path, file: StoredFile, md5: str, *, if_absent: bool) -> None:
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        with local.open("rb") as body:
            self._ask(
                "put_object",
                file.path,
                "can't be uploaded",
                Key=self.prefix + file.path,
                Body=body,
                ContentLength=file.bytes,
                ContentMD5=base64.b64encode(bytes.fromhex(md5)).decode(),
                Metadata={"sha256": file.sha256},
                **condition,
            )

    def _put_parts(self, local: Path, file: StoredFile) -> None:
        key, what = self.prefix + file.path, "can't be uploaded"
        upload: str = self._ask("create_multipart_upload", file.path, what, Key=key, Metadata={"sha256": file.sha256})["UploadId"]
        try:
            parts: list[dict[str, Any]] = []
            with local.open("rb") as body:
                while data := body.read(PART_BYTES):
                    number = len(parts) + 1
                    sent = self._ask(
                        "upload_part",
                        file.path,
                        what,
                        Key=key,
                        UploadId=upload,
                        PartNumber=number,
                        Body=data,
                        ContentMD5=_base64_md5(data),
                    )
                    parts.append({"PartNumber": number, "ETag": sent["ETag"]})
            self._ask("complete_multipart_upload", file.path, what, Key=key, UploadId=upload, MultipartUpload={"Parts": parts})
        except BaseException:
            with contextlib.suppress(S3Fault):  # `gc` finds it
                self._ask("abort_multipart_upload", file.path, what, Key=key, UploadId=upload)
            raise

    def _is_whole(self, there: Found, file: StoredFile, md5: str | None) -> bool:
        """Whether an object holds the file: by size and by its MD5 where the ETag is one, else by reading all of it."""
        if there.bytes != file.bytes:
            return False
        if md5 is not None and there.etag == md5:
            return True
        return self._sha256(file.path) == file.sha256

    def _sha256(self, path: str) -> str | None:
        sha = hashlib.sha256()
        for chunk in self._chunks(path):
            sha.update(chunk)
        return sha.hexdigest()

    def get_file(self, path: str, target: Path) -> tuple[int, str]:
        """Download an object into `target`. Returns its size and sha256 as received. Raises S3Fault (`missing`, ...)."""
        for attempt in range(READ_ATTEMPTS):
            sha, size = hashlib.sha256(), 0
            try:
                with target.open("wb") as out:
                    for chunk in self._chunks(path):
                        out.write(chunk)
                        sha.update(chunk)
                        size += len(chunk)
                return size, sha.hexdigest()
            except S3Fault as fault:
                if not fault.passing or attempt == READ_ATTEMPTS - 1:
                    raise
            time.sleep(0.2 * 2**attempt)
        raise AssertionError("unreachable")

    def _chunks(self, path: str) -> Iterator[bytes]:
        answer = self._ask("get_object", path, "can't be read", Key=self.prefix + path)
        length, seen = int(answer["ContentLength"]), 0
        with translated("can't be read", self.url(path)):
            for chunk in answer["Body"].iter_chunks(CHUNK_BYTES):
                seen += len(chunk)
                yield chunk
        if seen != length:
            raise S3Fault("unreachable", "can't be read", self.url(path), f"cut after {seen} of {length} bytes")

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Bytes `start` to `start + length` of an object."""
        if length <= 0:
            return b""
        answer = self._ask("get_object", path, "can't be read", Key=self.prefix + path, Range=f"bytes={start}-{start + length - 1}")
        with translated("can't be read", self.url(path)):
            return answer["Body"].read()

    def server_time(self) -> float:
        """Seconds since 1970 by the server's clock. Raises S3Fault when the bucket can't be reached or isn't there."""
        answer = self._ask("list_objects_v2", "", "can't be used", Prefix=self.prefix, MaxKeys=1)
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        return parsedate_to_datetime(date).timestamp() if date else time.time()

    # -- looking and removing --------------------------------------------------------------------------------------------

    def head(self, path: str) -> Found | None:
        """What is known of an object, None when there is none."""
        try:
            return _found(path, self._ask("head_object", path, "can't be looked at", Key=self.prefix + path))
        except S3Fault as fault:
            if fault.kind == "missing":
                return None
            raise

    def list(self, under: str = "") -> Iterator[Found]:
        """Objects whose paths begin with `under`, in order, a page of 1,000 at a time. Never the truth about a store."""
        token: dict[str, str] = {}
        while True:
            page = self._ask("list_objects_v2", under, "can't be listed", Prefix=self.prefix + under, **token)
            for item in page.get("Contents", []):
                age = time.time() - item["LastModified"].timestamp()
                yield Found(item["Key"].removeprefix(self.prefix), int(item["Size"]), _bare(item["ETag"]), age)
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, paths: Iterable[str]) -> None:
        """Remove objects, one request each (DeleteObjects isn't understood everywhere)."""
        for path in paths:
            self._ask("delete_object", path, "can't be removed", Key=self.prefix + path)

    def quarantine(self, path: str, *, allowed: Callable[[str], None] = lambda path: None) -> str:
        """Move an object to `quarantine/<path>.<time>`. Returns the new path.

        `allowed` is called before the original is removed, and may raise: copying it may have taken long.
        """
        kept = f"{QUARANTINE}/{path}.{time.time_ns():x}"
        source = {"Bucket": self.name, "Key": self.prefix + path}
        self._ask("copy_object", path, "can't be moved to quarantine", Key=self.prefix + kept, CopySource=source)
        allowed(path)
        self.delete([path])
        return kept

    def unfinished(self) -> list[tuple[str, str, float]]:
        """Multipart uploads under the prefix that were never completed: path, upload id, age in seconds."""
        uploads: list[dict[str, Any]] = []
        marker: dict[str, str] = {}
        while True:
            try:
                page = self._ask("list_multipart_uploads", "", "can't be listed", Prefix=self.prefix, **marker)
            except S3Fault as fault:
                if fault.kind == "other":
                    return []  # a server without that request can't have any
                raise
            uploads += page.get("Uploads", [])
            if not page.get("IsTruncated"):
                break
            marker = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
        return [(item["Key"].removeprefix(self.prefix), item["UploadId"], time.time() - item["Initiated"].timestamp()) for item in uploads]

    def abort(self, path: str, upload: str) -> None:
        """Give up an unfinished multipart upload."""
        self._ask("abort_multipart_upload", path, "can't be aborted", Key=self.prefix + path, UploadId=upload)


def _found(path: str, answer: dict[str, Any]) -> Found:
    age = 0.0
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    if date and answer.get("LastModified"):
        # Both by the server's clock, so that ours may be wrong.
        age = max(0.0, (parsedate_to_datetime(date) - answer["LastModified"]).total_seconds())
    return Found(path, int(answer["ContentLength"]), _bare(answer["ETag"]), age, answer.get("Metadata", {}).get("sha256"))


def _bare(etag: str) -> str:
    return etag.strip('"')


def _base64_md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _hashes(local: Path) -> tuple[str, str, int]:
    md5, sha, size = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
    with local.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            md5.update(chunk)
            sha.update(chunk)
            size += len(chunk)
    return md5.hexdigest(), sha.hexdigest(), size
