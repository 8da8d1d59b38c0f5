"""Can this process use that bucket? Everything a run will do there is tried once, on an object that is removed again.

Here: the trials and what they mean. Not here: printing them (`dflash_assets.cli.doctor`). No word holds a secret.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from dflash_assets.resources.manifest import StoreFault
from dflash_assets.resources.s3_bucket import Bucket
from dflash_assets.resources.s3_claims import Claims
from dflash_assets.resources.s3_client import S3Fault, credentials_found, endpoint_of, make_client
from dflash_assets.resources.s3_lease import Lease

SKEW_SECONDS = 300.0
"""S3 refuses requests whose time is off by more than 15 minutes; a third of it is worth a word."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One thing that was tried."""

    name: str
    ok: bool
    found: str
    todo: str = ""


def try_bucket(url: str) -> Iterator[Trial]:
    """Credentials, bucket, rights, clock, lock; ends early where going on makes no sense."""
    bucket = Bucket(url, lambda: make_client(attempts=2, read_seconds=10))
    try:
        method = credentials_found()
    except S3Fault as fault:
        yield Trial("credentials", False, str(fault), "correct AWS_PROFILE or the files it names")
        return
    if method is None:
        todo = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or run where an instance role gives them"
        yield Trial("credentials", False, "none found in environment, profile or instance role", todo)
        return
    yield Trial("credentials", True, f"found ({method})")
    try:
        here, there = time.time(), bucket.server_time()
        yield Trial("bucket", True, f"{bucket.url()} at {endpoint_of(bucket.client)}")
    except StoreFault as fault:
        yield Trial("bucket", False, str(fault), "correct `store:`, the network or AWS_ENDPOINT_URL, as the message says")
        return
    off = here - there
    yield Trial("clock", abs(off) < SKEW_SECONDS, f"{off:+.0f} s against the server", "set this machine's clock")
    yield _rights(bucket)
    try:
        holders = Claims(Lease(bucket, "doctor"), "doctor").holders()
        yield Trial("lock", True, f"held by {', '.join(holder.said for holder in holders)}" if holders else "free")
    except StoreFault as fault:
        yield Trial("lock", False, str(fault), "see the message")


def _rights(bucket: Bucket) -> Trial:
    """Write, write on a condition, read, list and remove a small object."""
    probe, step, todo = f"doctor-{uuid.uuid4().hex}.tmp", "writing", "ask for reading, writing, listing and deleting under the prefix"
    try:
        bucket.put_bytes(probe, b"dflash-assets doctor")
        try:
            step = "reading"
            got = bucket.get_bytes(probe)
            step = "listing"
            listed = [found.path for found in bucket.list(probe)]
            step = "a conditional PUT"
            conditions = "ignores conditional PUT (the lock waits a few seconds longer)"
            try:
                bucket.put_bytes(probe, b"dflash-assets doctor", if_absent=True)
            except S3Fault as fault:
                if fault.kind != "exists":
                    raise
                conditions = "honours conditional PUT"
        finally:
            with contextlib.suppress(StoreFault):
                bucket.delete([probe])
        if got is None or got[0] != b"dflash-assets doctor" or listed != [probe]:
            return Trial("rights", False, f"{bucket.url()} doesn't give back what was written", "another server, or another bucket")
        step = "removing"
        bucket.delete([probe])
    except StoreFault as fault:
        return Trial("rights", False, f"{step} fails: {fault}", todo)
    return Trial("rights", True, f"reads, writes, lists and removes; {conditions}")
