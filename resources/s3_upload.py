"""Uploading behind the commits: what the local manifest names and the bucket's doesn't is pending, and goes up in order.

Here: the threads that upload, and when something becomes visible; texts that may change. Not here: the bucket's manifest
(`s3_remote.py`), who may write what (`s3_claims.py`), requests (`s3_bucket.py`).

A commit's entries become visible in the bucket together, after all their files are there and verified. One process of a
working copy uploads, whichever holds `uploader.lock`; the others wait for it.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence

import orjson
from filelock import FileLock, Timeout

from dflash_assets.resources.durable import write_text
from dflash_assets.resources.manifest import Entry, StoredFile, StoreFault
from dflash_assets.resources.s3_bucket import Bucket
from dflash_assets.resources.s3_claims import Claims
from dflash_assets.resources.s3_lease import Held
from dflash_assets.resources.s3_remote import Pending, Remote, highest, pending_of, read_ties
from dflash_assets.resources.store import DirectoryStore
from dflash_assets.resources.store_scope import NOTHING, WHOLE, Scope

log = logging.getLogger(__name__)
THREADS = 4
MANIFEST_SECONDS = 1.0
"""Between two versions of the bucket's manifest, while more is on its way."""
PROGRESS_SECONDS = 10.0
"""Between two versions of a text that changes all the time."""
IDLE_SECONDS = 0.5
MAX_PAUSE = 30.0
GIVE_UP_SECONDS = 600.0
"""`settle` ends when nothing has got up for so long."""
STOP_SECONDS = 30.0
WIDEN_SECONDS = 5.0
"""Between two tries to write more than what is held, while another host holds some of it."""


class Uploader:
    """The threads that bring a working copy's commits into the bucket."""

    def __init__(self, bucket: Bucket, local: DirectoryStore, remote: Remote, claims: Claims, *, threads: int = THREADS) -> None:
        self._bucket, self._local, self._remote, self._claims, self._threads = bucket, local, remote, claims, threads
        self._role = FileLock(local.work / "uploader.lock", timeout=0, thread_local=False)
        self._wake, self._ending = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._dirty: dict[str, float] = {}
        self._sent: dict[str, float] = {}
        self._verified: dict[str, str] = {}
        self._hurry = False
        self._bug: BaseException | None = None
        self._refused: tuple[float, Held] | None = None
        self.wanted = NOTHING
        """What the run of this process said that it will write; what is pending is claimed besides."""
        self.text_path: Callable[[str], str] = lambda path: path
        """Where a text goes in the bucket."""
        self.on_pass: list[Callable[[], None]] = []
        """Called now and then by the uploading process, e.g. to mirror the journal."""
        self.on_up: Callable[[], None] = lambda: None
        """Called after files got up."""

    # -- beginning and ending ------------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Take the role and claim what is to be written now, in this thread. False when another process of this working copy has
        the role, or nothing is to be written.

        Raises Held or S3Fault.
        """
        with self._guard:
            if self._claims.lost is not None:
                raise Held(self._claims.lost)
            names = self.pending().names
            scope = self.wanted | Scope.of(names)
            if not scope and not self._claims.scope:
                if not names:
                    return False
                scope = WHOLE
            if not self._role.is_locked:
                try:
                    self._role.acquire()
                except Timeout:
                    return False
            try:
                self._claim(scope)
            except BaseException:
                if not self._claims.scope:
                    self._role.release()
                raise
            return True

    def _claim(self, scope: Scope) -> None:
        """Claim it; what lies outside of what is held may wait, what the run said it would write may not."""
        if self._refused is not None and time.monotonic() - self._refused[0] < WIDEN_SECONDS:
            scope = self.wanted
        try:
            self._claims.acquire(lambda: highest(self._remote.read()[0]), scope)
            if scope != self.wanted:
                self._refused = None
        except Held as held:
            if not self._claims.scope or not self._claims.scope.covers(self.wanted):
                raise
            self._refused = (time.monotonic(), held)

    def start(self) -> None:
        """Start the thread, unless it runs."""
        with self._guard:
            if self._thread is None or not self._thread.is_alive():
                self._ending.clear()
                self._thread = threading.Thread(target=self._run, name="upload", daemon=True)
                self._thread.start()

    @property
    def running(self) -> bool:
        """Whether this process has an uploading (or waiting) thread."""
        return self._thread is not None and self._thread.is_alive()

    def wake(self) -> None:
        """There is something new."""
        self._wake.set()

    def text(self, path: str) -> None:
        """A small file changed."""
        self._dirty.setdefault(path, time.monotonic())
        self.wake()

    def stop(self) -> None:
        """End the thread after what it is doing, give back lease and role."""
        self._ending.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)
        with self._guard:
            self.wanted = NOTHING
            self._claims.release()
            if self._role.is_locked:
                self._role.release()

    # -- what is left ----------------------------------------------------------------------------------------------------

    def pending(self) -> Pending:
        """What is still to be made visible in the bucket, by records on this machine."""
        return pending_of(self._local.entries(), self._remote.manifest.entries, read_ties(self._local.work))

    @property
    def problem(self) -> str | None:
        """Why nothing gets up at the moment; whichever process uploads says so."""
        try:
            return orjson.loads((self._local.work / "uploader.json").read_bytes())["problem"]
        except (OSError, orjson.JSONDecodeError, KeyError):
            return None

    def settle(self, *, give_up: float = GIVE_UP_SECONDS) -> None:
        """Wait until nothing is pending. Raises StoreFault when the lease is lost, or nothing has got up for `give_up` seconds."""
        self.start()
        seen, since = -1, time.monotonic()
        try:
            self._wait_settled(seen, since, give_up)
        finally:
            self._hurry = False

    def _wait_settled(self, seen: int, since: float, give_up: float) -> None:
        while True:
            left = self.pending()
            files = left.files(self._remote.manifest)
            if not left.groups and (not self._dirty or not self._role.is_locked):
                return
            if self._claims.lost is not None:
                raise Held(self._claims.lost)
            if self._bug is not None:
                raise self._bug
            count = len(left.names) + len(files) - len(self._verified) + len(self._dirty)
            if count != seen:
                seen, since = count, time.monotonic()
            if time.monotonic() - since > give_up:
                raise StoreFault(
                    f"{len(files)} file(s), {sum(file.bytes for file in files) / 1e6:.1f} MB, are not in {self._bucket.url()} yet: "
                    f"{self.problem or 'nothing moves'}. They are kept in {self._local.root}; run again to go on (nothing is asked twice)"
                )
            self._hurry = True
            self.wake()
            time.sleep(0.05)

    # -- the thread ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop()
        except BaseException as bug:
            self._bug = bug
            raise

    def _loop(self) -> None:
        pause = 0.0
        while not self._ending.is_set():
            try:
                if not self.begin():
                    self._wait(IDLE_SECONDS)
                    continue
                moved = self._pass()
                self._say(str(self._refused[1]) if self._refused is not None else None)
                pause = 0.0
                if not moved:
                    self._wait(IDLE_SECONDS)
            except (StoreFault, OSError) as error:
                self._say(str(error))
                if self._claims.lost is not None:
                    return
                pause = min(MAX_PAUSE, max(0.5, pause * 2))
                self._ending.wait(pause * random.uniform(0.7, 1.3))

    def _wait(self, seconds: float) -> None:
        self._wake.wait(seconds)
        self._wake.clear()

    def _say(self, problem: str | None) -> None:
        if problem != self.problem:
            if problem is not None:
                log.warning("upload waits: %s", problem)
            write_text(self._local.work / "uploader.json", orjson.dumps({"problem": problem, "at": time.time()}).decode())

    def _pass(self) -> bool:
        """Bring up what is pending now. True when something moved. Raises Held when the lease has been lost meanwhile."""
        self._claims.require()
        left = self.pending()
        moved = self._texts()
        for call in self.on_pass:
            call()
        held = Pending([group for group in left.groups if self._claims.scope.covers(Scope.of(group))])
        if not held.groups:
            return moved
        self._send(held)
        return True

    def _texts(self) -> bool:
        moved = False
        for path in list(self._dirty):
            if not self._hurry and time.monotonic() - self._sent.get(path, -PROGRESS_SECONDS) < PROGRESS_SECONDS:
                continue
            since = self._dirty.pop(path, None)
            try:
                self._bucket.put_bytes(self.text_path(path), (self._local.local(path)).read_bytes())
            except FileNotFoundError:
                continue
            except StoreFault:
                self._dirty.setdefault(path, since or time.monotonic())
                raise
            self._sent[path] = time.monotonic()
            moved = True
        return moved

    def _send(self, left: Pending) -> None:
        """Upload the groups' files with several threads; make each group visible when all its files are there."""
        up = self._remote.manifest
        jobs: queue.SimpleQueue[tuple[int, StoredFile] | None] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[int, StoredFile, str | BaseException]] = queue.SimpleQueue()
        missing: list[set[str]] = []
        count = 0
        for number, group in enumerate(left.groups):
            files = {file.path: file for entry in group.values() if entry is not None for file in entry.files}
            todo = [file for path, file in files.items() if path not in up.etags and path not in self._verified]
            missing.append({file.path for file in todo})
            for file in todo:
                jobs.put((number, file))
                count += 1
        ready = [number for number, paths in enumerate(missing) if not paths]
        workers = [
            threading.Thread(target=self._work, args=(jobs, done), name=f"upload-{number}", daemon=True)
            for number in range(min(self._threads, count))
        ]
        for worker in workers:
            jobs.put(None)
            worker.start()
        faults: list[BaseException] = []
        published = time.monotonic()
        while count or ready:
            if ready and (not count or time.monotonic() - published > MANIFEST_SECONDS):
                self._publish([left.groups[number] for number in ready])
                ready, published = [], time.monotonic()
                continue
            try:
                number, file, result = done.get(timeout=MANIFEST_SECONDS)
            except queue.Empty:
                continue
            count -= 1
            if isinstance(result, BaseException):
                faults.append(result)
                continue
            self._verified[file.path] = result
            missing[number].discard(file.path)
            if not missing[number]:
                ready.append(number)
        for worker in workers:
            worker.join()
        if faults:
            raise faults[0]
        if jobs.empty():
            self.on_up()

    def _work(
        self,
        jobs: queue.SimpleQueue[tuple[int, StoredFile] | None],
        done: queue.SimpleQueue[tuple[int, StoredFile, str | BaseException]],
    ) -> None:
        failed: BaseException | None = None
        while (job := jobs.get()) is not None:
            number, file = job
            try:
                if failed is not None or self._ending.is_set():
                    # One refusal is enough to know; the rest waits for the next pass.
                    raise failed or StoreFault("stopped")
                done.put((number, file, self._bucket.put_file(self._local.local(file.path), file, in_the_way=self._may_clear)))
            except FileNotFoundError:
                done.put((number, file, StoreFault(f"{self._local.local(file.path)} is gone before it was uploaded; run again")))
            except (StoreFault, OSError) as error:
                failed = error
                done.put((number, file, error))
            except BaseException as bug:
                done.put((number, file, bug))  # ends the uploading thread, and with it whoever waits for it
                raise

    def _may_clear(self, path: str) -> None:
        """An object that no manifest names may be moved out of the way, by whoever holds the lease."""
        self._claims.require()
        now, _ = self._remote.read()
        if any(file.path == path for entry in now.entries.values() for file in entry.files):
            raise StoreFault(f"{self._bucket.url(path)} holds other content than the file that belongs there, and the manifest names it")

    def _publish(self, groups: Sequence[dict[str, Entry | None]]) -> None:
        now = self._local.entries()
        # What was replaced here while it went up stays out: its successor is pending too.
        wanted = [group for group in groups if all(now.get(name) == entry for name, entry in group.items())]
        changes = {name: entry for group in wanted for name, entry in group.items()}
        if changes:
            paths = {file.path for entry in changes.values() if entry is not None for file in entry.files}
            self._remote.publish(changes, {path: tag for path, tag in self._verified.items() if path in paths}, self._claims)
            for path in paths:
                self._verified.pop(path, None)
