"""What this working copy may write in a bucket: the whole store, or entries of shards that no other host writes at the same time.

Here: claiming, widening, losing and giving back a scope. Not here: one lease (`s3_lease.py`), what a scope is (`store_scope.py`),
the fences in the manifest (`s3_remote.py`).

`lock.json` is the gate. Who wants the whole store holds it as long as it writes. Who wants shards holds it for a moment: looks
through `locks/`, where each such host keeps a lease of its own, and adds its own when none of the living ones overlaps. Every
passage through the gate raises the epoch, so that of two that ever claimed the same shard the later one has the higher epoch.
Runs of several ranges replace one manifest in turn, so they need a server that compares ETags; elsewhere they are refused.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from dflash_assets.resources.manifest import StoreFault
from dflash_assets.resources.s3_bucket import Found
from dflash_assets.resources.s3_client import S3Fault
from dflash_assets.resources.s3_lease import Held, Holder, Lease, bury, read_holder
from dflash_assets.resources.store_scope import NOTHING, WHOLE, Scope

FOLDER = "locks"
FORGET_SECONDS = 3600.0
"""Age at which the lock of a host that was declared dead is removed."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Another host's lease on a range, as found."""

    path: str
    holder: Holder
    there: Found

    @property
    def scope(self) -> Scope:
        """What it may write."""
        return Scope.parse(self.holder.shards or "")


class Claims:
    """The right of one working copy to write. One object a process."""

    def __init__(self, gate: Lease, copy: str) -> None:
        """`gate` is the lease on `lock.json`; `copy` names this working copy among all."""
        self._gate = gate
        self._range = Lease(gate.bucket, gate.owner, path=f"{FOLDER}/{copy}.json", ttl=gate.ttl, beat=gate.beat, settle=gate.settle)
        self._guard = threading.RLock()
        self._compares: bool | None = None
        self.scope = NOTHING
        """What is held."""

    @property
    def _active(self) -> Lease:
        return self._gate if self.scope == WHOLE else self._range

    @property
    def epoch(self) -> int:
        """Epoch of what we hold, 0 without anything."""
        return self._active.epoch

    @property
    def lost(self) -> str | None:
        """Who took it from us, None while nobody did."""
        return self._gate.lost or self._range.lost

    def forgive(self) -> None:
        """Forget that it was lost: a new run may try again."""
        self._gate.lost = self._range.lost = None

    def acquire(self, floor: Callable[[], int], scope: Scope) -> None:
        """Hold (at least) this scope besides what is held already. `floor`: see Lease.acquire.

        Raises Held when another host that lives holds some of it; what was held before is then held still. A host that has shown
        no sign of life for two beats is waited for. Raises S3Fault when the bucket can't be asked.
        """
        with self._guard:
            if self._active.epoch == 0:
                self.scope = NOTHING
            if self.scope.covers(scope):
                return
            wanted = self.scope | scope
            while (wait := self._try(floor, wanted)) > 0:
                time.sleep(min(wait, max(0.1, self._gate.beat / 10)))

    def _try(self, floor: Callable[[], int], wanted: Scope) -> float:
        """0 when it is held now, else seconds after which a silent host counts as dead."""
        whole = wanted == WHOLE
        self._gate.acquire(floor, brief=not whole)
        kept = False
        try:
            if not whole and not self._server_compares():
                raise StoreFault(
                    f"{self._gate.bucket.url()}: this server ignores the conditions of a PUT, so hosts with different shards can't write "
                    "there at the same time; run them one after the other, as whole runs"
                )
            if wait := self._in_the_way(wanted):
                return wait
            if whole:
                self._range.release(remove=True)
                kept = True
            else:
                epoch = self._gate.epoch
                self._range.release()
                self._range.acquire(shards=str(wanted), epoch=epoch)
                self._still_at_the_gate()
            self.scope = wanted
            return 0.0
        finally:
            if not kept:
                self._gate.release()

    def _still_at_the_gate(self) -> None:
        """A process that was stopped between looking and claiming may have been overtaken: then its claim is withdrawn."""
        try:
            self._gate.confirm()
        except StoreFault:
            self._range.release(remove=True)
            self.scope = NOTHING
            raise

    def _server_compares(self) -> bool:
        if self._compares is None:
            self._compares = self._gate.compares()
        return self._compares

    def _in_the_way(self, wanted: Scope) -> float:
        """Seconds until the first silent holder of some of it counts as dead, 0 when nobody is left. Dead ones are buried.

        Raises Held for a living one.
        """
        wait = 0.0
        for claim in self._others():
            age = claim.there.age
            if claim.holder.owner is None:
                if age > FORGET_SECONDS:
                    self._gate.bucket.delete([claim.path])
            elif claim.scope.meets(wanted):
                if age <= 2 * self._gate.beat:
                    raise Held(self._gate.refusal(claim.holder, age))
                if age <= self._gate.ttl:
                    wait = max(wait, self._gate.ttl - age + 1.0)
                    continue
                try:
                    bury(self._gate.bucket, claim.path, claim.holder, claim.there)
                except S3Fault as fault:
                    if fault.kind != "exists":
                        raise
                    wait = max(wait, 0.1)  # it lives after all: look again
        return wait

    def _others(self) -> list[Claim]:
        found: list[Claim] = []
        bucket = self._gate.bucket
        for listed in bucket.list(f"{FOLDER}/"):
            if not listed.path.endswith(".json") or (read := read_holder(bucket, listed.path)) is None:
                continue
            if read[0].owner != self._gate.owner:
                found.append(Claim(listed.path, *read))
        return found

    def holders(self) -> list[Holder]:
        """Everybody who writes now, by the bucket's word, ourselves included."""
        gate = self._gate.holder()
        bucket = self._gate.bucket
        found = [read for listed in bucket.list(f"{FOLDER}/") if (read := read_holder(bucket, listed.path)) is not None]
        ranges = [holder for holder, there in found if holder.owner is not None and there.age <= self._gate.ttl]
        return [*([gate] if gate is not None and not gate.brief else []), *ranges]

    # -- holding -------------------------------------------------------------------------------------------------------

    def require(self) -> int:
        """The epoch, after making sure that what is held is still ours for the next requests. See Lease.require."""
        return self._active.require()

    def lose(self, why: str) -> None:
        """It was found out elsewhere that somebody else has it."""
        self._active.lose(why)

    def release(self) -> None:
        """Give everything back."""
        with self._guard, contextlib.suppress(StoreFault):
            self._range.release(remove=True)
            self._gate.release()
            self.scope = NOTHING
