"""Who may write to a prefix of a bucket: a lease in an object, `lock.json`, renewed while its holder lives.

Here: taking, renewing, losing and giving back one lease. Not here: which leases a run needs (`s3_claims.py`), the lock between
processes of one machine (`store_lock.py`) and the manifest (`s3_remote.py`), which carries the lease's epoch as its fence.

The holder is a working copy on a host; processes that share one share the lease. Age is read from the server (Date minus
Last-Modified), so that this machine's clock may be wrong. Conditional PUT decides a race where the server looks at the condition;
whether it does is found out on the lock itself. Where it doesn't, two contenders may both write: then each waits until the
other's write would have arrived, reads, and only the one whose token stands there goes on.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import orjson

from dflash_assets.resources.manifest import StoreFault
from dflash_assets.resources.s3_bucket import Bucket, Found
from dflash_assets.resources.s3_client import S3Fault
from dflash_assets.resources.store_lock import describe_me

LOCK = "lock.json"
TTL = 60.0
"""Seconds after its last sign of life at which a holder counts as dead."""
BEAT = 10.0
"""Seconds between signs of life."""
TRIES = 10
SETTLE = 3.0
"""Seconds a write of a contender may take to arrive, on servers without conditional PUT."""


class Held(StoreFault):
    """Another machine (or another working copy) writes."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Content of a lock object. `owner` None: free. `epoch` rises with each taking, and never falls."""

    owner: str | None
    token: str
    epoch: int
    host: str = ""
    pid: int = 0
    since: str = ""
    beats: int = 0
    shards: str | None = None
    """Shards it may write (a Scope's text), None for the whole store."""
    brief: bool = False
    """Held for a few requests only: wait for it instead of being refused."""

    @property
    def said(self) -> str:
        """In words."""
        part = "" if self.shards is None else f" (shards {self.shards})"
        return f"process {self.pid} on {self.host} since {self.since}{part}"


class Lease:
    """The right to write under one prefix. One object a process."""

    def __init__(
        self,
        bucket: Bucket,
        owner: str,
        *,
        path: str = LOCK,
        ttl: float = TTL,
        beat: float = BEAT,
        settle: float = SETTLE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bucket, self.owner, self.ttl, self.beat, self.settle = bucket, owner, ttl, beat, settle
        self._path, self._clock = path, clock
        self._mine: Holder | None = None
        self._etag = ""
        self._confirmed = 0.0
        self._guard = threading.RLock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self.lost: str | None = None
        """Who took it from us, None while nobody did."""

    @property
    def epoch(self) -> int:
        """Epoch of the lease we hold, 0 without one."""
        return self._mine.epoch if self._mine else 0

    def acquire(
        self, floor: Callable[[], int] = lambda: 0, *, shards: str | None = None, brief: bool = False, epoch: int | None = None
    ) -> None:
        """Take the lease and begin to renew it. `floor` is asked for an epoch to stay above when there is no lock object.

        `shards` and `brief` are written into it; a brief one isn't renewed. `epoch` is taken as it is instead of the next one.
        A holder that lives is refused at once (Held names it); one that has shown no sign of life for two beats is
        waited for until it counts as dead. Raises S3Fault when the bucket can't be asked.
        """
        with self._guard:
            if self._mine is not None:
                return
            fought = 0
            while (tried := self._try(floor, Holder(self.owner, "", epoch or 0, shards=shards, brief=brief))) != "taken":
                fought += tried == "fought"
                if fought == TRIES:
                    raise S3Fault("busy", "is fought over", self.bucket.url(self._path), f"{TRIES} tries")
            self.lost = None
            if brief:
                return
            self._ending.clear()
            self._thread = threading.Thread(target=self._renewing, name="lease", daemon=True)
            self._thread.start()

    def _try(self, floor: Callable[[], int], wanted: Holder) -> Literal["taken", "fought", "waited"]:
        found = self._read()
        epoch = floor() if found is None and not wanted.epoch else 0
        if found is not None:
            holder, there = found
            epoch = holder.epoch
            if holder.owner not in (None, self.owner) and there.age <= self.ttl:
                if holder.brief:
                    time.sleep(random.uniform(0.05, 0.3))
                    return "waited"
                if there.age <= 2 * self.beat:
                    raise Held(self.refusal(holder, there.age))
                self._outwait(there)
                return "fought"
        me = describe_me()
        mine = replace(
            wanted,
            token=uuid.uuid4().hex,
            epoch=wanted.epoch or epoch + 1,
            host=str(me["host"]),
            pid=int(me["pid"]),
            since=str(me["since"]),
        )
        began = self._clock()
        try:
            etag = self._write(mine, found[1].etag if found else None)
        except S3Fault as fault:
            if fault.kind != "exists":
                raise
            time.sleep(random.uniform(0.05, 0.3))  # somebody was faster; look again
            return "waited" if wanted.brief else "fought"
        if not self._conditions_hold(mine):
            # Whoever read the lock before our write may still write after it; wait until that would have arrived.
            time.sleep(self.settle + (self._clock() - began))
            now = self._read()
            if now is None or now[0].token != mine.token:
                return "fought"
            etag = now[1].etag
        self._mine, self._etag, self._confirmed = mine, etag, self._clock()
        return "taken"

    def _outwait(self, there: Found) -> None:
        """Wait until a silent holder counts as dead, or shows a sign of life."""
        until = self._clock() + self.ttl - there.age + 1.0
        while self._clock() < until:
            time.sleep(min(1.0, self.beat))
            now = self.bucket.head(self._path)
            if now is None or now.etag != there.etag:
                break

    def refusal(self, holder: Holder, age: float) -> str:
        """What is said to who is refused."""
        return (
            f"{self.bucket.url()} is being written by {holder.said} (last sign of life {age:.0f} s ago); wait for it, or stop it, and "
            f"run again. If that machine is gone, the lock is free {self.ttl:.0f} s after its last sign of life"
        )

    def _conditions_hold(self, mine: Holder) -> bool:
        """Whether this server looks at the condition of a PUT: one that must fail is tried."""
        try:
            self._etag = self._write(mine, None)
        except S3Fault as fault:
            if fault.kind == "exists":
                return True
            raise
        return False

    def compares(self) -> bool:
        """Whether this server looks at the ETag a PUT names: one that must fail is tried on the held lock."""
        assert self._mine is not None
        try:
            self._etag = self.bucket.put_bytes(self._path, _dump(self._mine), if_etag="0" * 32)
        except S3Fault as fault:
            if fault.kind == "exists":
                return True
            raise
        return False

    def _write(self, holder: Holder, etag: str | None) -> str:
        return self.bucket.put_bytes(self._path, _dump(holder), if_etag=etag, if_absent=etag is None)

    def _read(self) -> tuple[Holder, Found] | None:
        return read_holder(self.bucket, self._path)

    def holder(self) -> Holder | None:
        """Who holds the lease by the bucket's word, None when it is free."""
        found = self._read()
        return found[0] if found is not None and found[0].owner is not None and found[1].age <= self.ttl else None

    # -- holding -------------------------------------------------------------------------------------------------------

    def require(self) -> int:
        """The epoch, after making sure that the lease is still ours for the next requests.

        Raises Held when it was lost, S3Fault when that can't be found out.
        """
        with self._guard:
            if self._mine is None:
                raise Held(self.lost or f"{self.bucket.url()}: this process doesn't hold the lock")
            if self._clock() - self._confirmed > self.ttl / 2:
                self._renew()
            return self._mine.epoch

    def lose(self, why: str) -> None:
        """It was found out elsewhere that somebody else has it."""
        with self._guard:
            self.lost, self._mine = why, None

    def _renew(self, *, again: bool = True) -> None:
        assert self._mine is not None
        found = self._read()
        if found is None or found[0].token != self._mine.token:
            who = found[0].said if found and found[0].owner else "nobody: the lock was removed"
            why = f"{self.bucket.url()} was taken over by {who}; what is done is kept on this machine and joined by the next run"
            self.lose(why)
            raise Held(why)
        holder, asked = found[0], self._clock()
        fresh = replace(holder, beats=holder.beats + 1)
        try:
            self._etag = self._write(fresh, found[1].etag)
        except S3Fault as fault:
            if fault.kind == "exists" and again:
                return self._renew(again=False)  # changed between the two requests: read again who it is
            raise
        self._mine, self._confirmed = fresh, asked
        return None

    def _renewing(self) -> None:
        while not self._ending.wait(self.beat):
            with self._guard:
                if self._mine is None:
                    return
                try:
                    self._renew()
                except Held:
                    return
                except StoreFault:
                    continue  # out of reach for now; `require` decides whether anything may be written

    def confirm(self) -> None:
        """Make sure by asking that the lease is ours at this moment. Raises Held when it isn't."""
        with self._guard:
            if self._mine is None:
                raise Held(self.lost or f"{self.bucket.url()}: this process doesn't hold the lock")
            self._renew()

    def release(self, *, remove: bool = False) -> None:
        """Give the lease back, with `remove` its object too. Does nothing when it isn't held; a bucket out of reach is left to
        the time limit."""
        with self._guard:
            self._ending.set()
            mine, self._mine = self._mine, None
            if mine is None:
                return
            try:
                found = self._read()
                if found is not None and found[0].token == mine.token and remove:
                    self.bucket.delete([self._path])
                elif found is not None and found[0].token == mine.token:
                    self._write(Holder(None, mine.token, mine.epoch), found[1].etag)
            except StoreFault:
                pass


def read_holder(bucket: Bucket, path: str) -> tuple[Holder, Found] | None:
    """A lock object and what is known of it, None when there is none. Raises StoreFault when it is something else."""
    found = bucket.get_bytes(path)
    if found is None:
        return None
    try:
        value: dict[str, Any] = orjson.loads(found[0])
        return Holder(**value), found[1]
    except (orjson.JSONDecodeError, TypeError) as error:
        raise StoreFault(
            f"{bucket.url(path)} isn't a lock of this program; if the prefix belongs to something else, give `store:` another "
            "one, else remove that object"
        ) from error


def bury(bucket: Bucket, path: str, dead: Holder, there: Found) -> None:
    """Mark a dead holder's lock as free, so that it finds out when it comes back. Raises S3Fault `exists` when it has come back."""
    bucket.put_bytes(path, _dump(Holder(None, "", dead.epoch)), if_etag=there.etag)  # another token: the dead one's is void


def _dump(holder: Holder) -> bytes:
    # Without what says nothing, so that an older version reads the lock of a whole store.
    return orjson.dumps({name: value for name, value in asdict(holder).items() if name == "owner" or not (value is None or value is False)})
