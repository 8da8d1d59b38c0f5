"""A store in a bucket: committed to a local working copy first, uploaded behind, fetched when something isn't here.

Here: the S3Store: what each promise of a store comes to. Not here: the local side (`working_copy.py`), requests (`s3_bucket.py`),
the bucket's manifest (`s3_remote.py`), uploading (`s3_upload.py`), who may write (`s3_claims.py`), what becomes of damage
(`s3_mender.py`), the journal's copies (`s3_journal.py`). docs/storage.md tells the whole.
"""

from __future__ import annotations

import atexit
import errno
import logging
import threading
import time
import uuid
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path

from dflash_assets.resources.durable import publish, write_text
from dflash_assets.resources.manifest import Entry, Owner, StoredFile, StoreFault, changed
from dflash_assets.resources.s3_bucket import Bucket
from dflash_assets.resources.s3_claims import Claims
from dflash_assets.resources.s3_client import S3Fault, make_client
from dflash_assets.resources.s3_journal import JournalMirror
from dflash_assets.resources.s3_lease import Lease
from dflash_assets.resources.s3_mender import Mender
from dflash_assets.resources.s3_remote import Remote, add_tie
from dflash_assets.resources.s3_upload import Uploader
from dflash_assets.resources.store_lock import describe_me, held_by, is_locked, run_lock
from dflash_assets.resources.store_protocol import StoreOptions, StoreState
from dflash_assets.resources.store_scope import STAGES, WHOLE, Scope
from dflash_assets.resources.working_copy import RESERVE_BYTES, WorkingCopy

log = logging.getLogger(__name__)
TEXT_SECONDS = 5.0
LOOK_SECONDS = 20.0
"""Age at which what was seen of the bucket's manifest is looked at anew, by a process that doesn't write there itself."""
SHOWN_SECONDS = 60.0
"""How long `shown` waits for an upload."""
HOSTS = "hosts"
"""Folder of texts written by hosts that hold a part of the store."""
_shared: dict[tuple[str, str], S3Store] = {}
_sharing = threading.Lock()


def shared_store(root: str, owner: Owner, options: StoreOptions) -> S3Store:
    """The process's store for this address and working copy."""
    with _sharing:
        key = (root, str(options.work))
        if key not in _shared:
            _shared[key] = S3Store(root, owner, options)
            atexit.register(_shared[key].close)
        elif _shared[key].owner != owner:
            _shared[key].close()
            _shared[key] = S3Store(root, owner, options)
            atexit.register(_shared[key].close)
        return _shared[key]


class S3Store:
    """A store under `s3://bucket/prefix/`, with a working copy on this machine."""

    def __init__(self, root: str, owner: Owner, options: StoreOptions, *, bucket: Bucket | None = None, lease: Lease | None = None) -> None:
        """Nothing is asked of the bucket yet. Raises StoreFault for an impossible address or working copy."""
        assert options.work is not None
        self.owner, self._options = owner, options
        self._bucket = bucket or Bucket(root)
        self._local = WorkingCopy(Path(options.work), owner, self._bucket.url(), options.disk_bytes)
        # Small requests decide about the lock: they must fail well before the lease runs out.
        control = bucket or Bucket(root, lambda: make_client(attempts=2, read_seconds=8))
        self._claims = Claims(lease or Lease(control, f"{self._local.id}@{describe_me()['host']}"), self._local.id)
        self._remote = Remote(control, self._local, owner)
        self._uploader = Uploader(self._bucket, self._local, self._remote, self._claims)
        self._uploader.text_path = self._text_path
        self._mirror = JournalMirror(self._bucket, self.work / "journal", self._local.id, require=self._claims.require, control=control)
        if options.mirror_journal:
            self._uploader.on_pass.append(lambda: self._mirror.look(all_up=not self._uploader.pending().groups))
        self._uploader.on_up = lambda: self._local.trim(self._remote.manifest.etags)
        self._mender = Mender(self._bucket, self._local, self._remote, self._claims, pending=self._uploader.pending, commit=self.commit)
        self._guard = threading.RLock()
        self._pulled = False
        self._looked = 0.0
        self._patience = SHOWN_SECONDS
        self._texts: dict[str, float] = {}

    # -- the Store protocol --------------------------------------------------------------------------------------------

    @property
    def root(self) -> str:
        return self._bucket.url()

    @property
    def bucket(self) -> Bucket:
        """The bucket, for `gc`, `doctor` and `sql`."""
        return self._bucket

    @property
    def working_copy(self) -> WorkingCopy:
        """The local side, for `gc`."""
        return self._local

    @property
    def remote(self) -> Remote:
        """The bucket's manifest."""
        return self._remote

    @property
    def claims(self) -> Claims:
        """The right to write."""
        return self._claims

    @property
    def work(self) -> Path:
        return self._local.work

    def url(self, path: str) -> str:
        return self._bucket.url(path)

    def put(self, local: Path, path: str) -> StoredFile:
        return self._local.put(local, path)

    def put_folder(self, local: Path, path: str) -> tuple[StoredFile, ...]:
        return self._local.put_folder(local, path)

    def put_text(self, path: str, text: str) -> None:
        self._local.put_text(path, text)
        if self._uploader.running:
            self._uploader.text(path)
            return
        if self._claims.lost is not None:
            return  # it is another host's now
        try:
            self._bucket.put_bytes(self._text_path(path), text.encode())
        except StoreFault as fault:
            log.warning("%s is only in the working copy: %s", path, fault)

    def entries(self) -> dict[str, Entry]:
        self._look()
        return self._local.entries()

    def commit(self, changes: Mapping[str, Entry | None]) -> None:
        with self._local.manifest_lock():
            # Before the manifest: a crash between the two leaves a tie that ties nothing.
            still = self._uploader.pending().names
            add_tie(self.work, list(changes), still)
            self._local.replace(changed(self._local.entries(), changes))
        self._uploader.start()
        self._uploader.wake()

    @contextmanager
    def lock(self, shards: Iterable[int] | None = None, stages: Iterable[str] = STAGES) -> Generator[None]:
        scope = WHOLE if shards is None else Scope.shards(shards, stages)
        with run_lock(self.work, self.root, lambda: self._entered(scope)):
            if not self._uploader.wanted.covers(scope):  # taken again within this process, for more
                self._entered(self._uploader.wanted | scope)
            yield

    def _text_path(self, path: str) -> str:
        """Texts of a host that holds a part only are its own: two hosts never write one key."""
        part = self._uploader.wanted.parts is not None and self._claims.scope != WHOLE and bool(self._uploader.wanted)
        return f"{HOSTS}/{self._local.id}/{path}" if part else path

    def room(self) -> str | None:
        if self._claims.lost is not None:
            raise StoreFault(self._claims.lost)
        up = self._remote.manifest
        waiting = sum(file.bytes for file in self._uploader.pending().files(up))
        if self._local.free < RESERVE_BYTES:
            self._local.make_room(0, up.etags)
        free = self._local.free
        if waiting < self._local.disk_bytes and free >= RESERVE_BYTES:
            return None
        why = self._uploader.problem or "the upload is slower than the answers"
        return (
            f"no more work is taken on until the bucket has caught up: {waiting / 1e9:.2f} GB wait for upload to {self.root} "
            f"(limit {self._local.disk_bytes / 1e9:.1f} GB, {free / 1e9:.1f} GB free at {self._local.folder}); {why}"
        )

    def settle(self) -> None:
        self._uploader.settle()

    def shown(self, names: Iterable[str]) -> bool:
        wanted, until = set(names), time.monotonic() + self._patience
        while waits := bool(wanted & self._uploader.pending().names):
            if time.monotonic() >= until or self._claims.lost is not None:
                break
            time.sleep(0.2)
        # A bucket that is out of reach is waited for once, not shard by shard.
        self._patience = 0.0 if waits else SHOWN_SECONDS
        return not waits

    def state(self) -> StoreState:
        files = {file.path: file.bytes for entry in self.entries().values() for file in entry.files}
        left = self._uploader.pending().files(self._remote.manifest)
        return StoreState(
            len(files),
            sum(files.values()),
            len(left),
            sum(file.bytes for file in left),
            self._uploader.problem if left else None,
            held_by(self.work) if is_locked(self.work) else self._elsewhere(),
        )

    def close(self) -> None:
        """Stop uploading and give the lease back; what is pending goes up next time."""
        self._uploader.stop()

    # -- beginning -----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Join the bucket's manifest, and again now and then: a daemon outlives many runs of other hosts. Who writes sees the others'
        entries whenever it adds its own. A bucket out of reach stops only who has never seen it."""
        with self._guard:
            if self._pulled and (self._claims.epoch or time.monotonic() - self._looked < LOOK_SECONDS):
                return
            try:
                self._remote.pull()
            except S3Fault:
                if not self._remote.known:
                    raise
            self._pulled, self._looked = True, time.monotonic()

    def _entered(self, scope: Scope) -> None:
        """The run begins: nobody else may write, the bucket's state is this machine's, damage is found before it costs."""
        self._claims.forgive()
        self._uploader.wanted = scope
        if self._uploader.begin():
            self._remote.pull()
            self._pulled = True
            self._mender.verify()
            if self._options.mirror_journal and (found := self._restore_journals()):
                log.warning("brought %d journal segment(s) of another machine from %s", found, self.root)
        self._uploader.start()

    def _restore_journals(self) -> int:
        """Journals of machines that are gone; of those that live only the whole store's holder could, and then none lives."""
        alive = {(holder.owner or "").partition("@")[0] for holder in self._claims.holders()}
        return self._mirror.restore(alive, alone=self._claims.scope == WHOLE)

    def require(self) -> None:
        """Raise StoreFault unless this machine may still write: asked before anything in the bucket is moved or removed."""
        self._mender.require()

    def _elsewhere(self) -> str | None:
        try:
            found = self._claims.holders()
        except StoreFault:
            return None
        others = [holder.said for holder in found if not (holder.owner or "").startswith(f"{self._local.id}@")]
        return ", ".join(others) or None

    # -- reading -------------------------------------------------------------------------------------------------------

    def local(self, path: str) -> Path:
        """A local file with this content, fetched if need be.

        Raises StoreFault when the bucket doesn't hold it, or holds something else; then its entries are let go of.
        """
        self._look()
        here, file = self._local.local(path), self._local.named(path)
        if file is None:
            self._fetch_text(path, here)
            return here
        with self._guard:
            if self._local.has(file):
                self._local.touch(file)
            else:
                self._fetch(file, here)
        return here

    def is_local(self, path: str) -> bool:
        """Whether reading it needs no request."""
        return self._local.local(path).exists()

    def _fetch(self, file: StoredFile, here: Path) -> None:
        temporary = self.work / "tmp" / f"fetch-{uuid.uuid4().hex}"
        temporary.parent.mkdir(parents=True, exist_ok=True)
        self._local.make_room(file.bytes, self._remote.manifest.etags)
        try:
            try:
                size, sha = self._bucket.get_file(file.path, temporary)
            except S3Fault as fault:
                if fault.kind != "missing":
                    raise
                size, sha = -1, ""
            if (size, sha) != (file.bytes, file.sha256):
                self._refuse(file, size)
            here.parent.mkdir(parents=True, exist_ok=True)
            publish(temporary, here)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFault(
                    f"no room to fetch {self.url(file.path)} ({file.bytes / 1e6:.1f} MB) at {self._local.folder}: free space"
                ) from error
            raise
        finally:
            temporary.unlink(missing_ok=True)
        self._local.trim(self._remote.manifest.etags)

    def _refuse(self, file: StoredFile, size: int) -> None:
        ours = all(self._mender.is_ours(name) for name, entry in self._local.entries().items() if file in entry.files)
        if not self._claims.epoch or not ours:
            state = "is gone" if size < 0 else "isn't what the manifest says"
            raise StoreFault(f"{self.url(file.path)} {state}; the next `dflash-assets run` finds it and makes it again")
        what = "is gone from the bucket"
        if size >= 0:
            what = f"has changed behind our back; it was moved to {self._mender.set_aside(file.path)}"
        self._mender.let_go([file])
        raise StoreFault(
            f"{self.url(file.path)} {what}. Run again: it is made again, from answers that are still there where there are any"
        )

    def _fetch_text(self, path: str, here: Path) -> None:
        """Texts change, so they are looked at anew now and then; not while this machine writes them itself."""
        if self._uploader.running or time.monotonic() - self._texts.get(path, -TEXT_SECONDS) < TEXT_SECONDS or is_locked(self.work):
            return
        self._texts[path] = time.monotonic()
        try:
            found = self._bucket.get_bytes(path)
        except StoreFault:
            return
        if found is not None:
            here.parent.mkdir(parents=True, exist_ok=True)
            write_text(here, found[0].decode("utf-8", "replace"))
