"""One generation run over a range of shards: a background thread owns the event loop, the caller iterates outcomes.

Here: threads, start and stop, who is called when. Not here: the window itself, and Dagster (`dflash_assets.assets`),
which turns each outcome into events while the window goes on.

The window's loop must never wait for the consumer: an asset generator that is suspended at a `yield` would stop an
event loop of its own (51 of 64 slots filled; with the thread 64 of 64).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dflash_assets.errors import GenerationError
from dflash_assets.generation.content import ContentWatch
from dflash_assets.generation.joining import Follower, Listed, start_all
from dflash_assets.generation.journal import Journal
from dflash_assets.generation.progress import Progress
from dflash_assets.generation.requests import OpenShard
from dflash_assets.generation.servers import Fleet
from dflash_assets.generation.settings import WindowSettings
from dflash_assets.generation.shards import ShardOutcome, ShardPlan, Shards, pending
from dflash_assets.generation.window import Window
from dflash_assets.resources.discovery import Discovery
from dflash_assets.resources.engines.base import Engine, LoadingEngine
from dflash_assets.resources.store import Store, StoreFault

PROGRESS_SECONDS = 1.0
ROOM_SECONDS = 0.5
COLLECT_EVERY = 20_000
COMMIT_AT_MOST = 32
"""Shards of one commit: they and their answers stay in memory until the manifest names them."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Generation:
    """Everything a run needs. `engines` makes the engines; it is only called when something has to be asked."""

    store: Store
    settings: WindowSettings
    engines: Callable[[], Sequence[tuple[Engine, int | None]]]
    """Engines with the limit of requests in flight each (None: the server's own count)."""
    expected_model: str | None
    """Name a server must report; None for the embedded engine."""
    samples: int = 1
    """Answers wanted for each prompt."""
    gpus: Mapping[str, int] = field(default_factory=dict[str, int])
    """GPUs of each server by its label, where the recipe names them."""
    content: Callable[[], ContentWatch] | None = None
    """Makes what looks at answers as they land; only called when something has to be asked."""
    discovery: Callable[[], Discovery | None] = lambda: None
    """Finds servers besides `engines`, at the start and during the run; only called when something has to be asked."""


_running: dict[int, tuple[GenerationRun, threading.Thread]] = {}
"""Runs whose thread works, by id of the run."""


def end_running() -> None:
    """Drain every run that is still going in this process, and wait for it.

    Leaving the iteration does that too, but an interrupt can reach Dagster while the iterating generator is suspended;
    the traceback then keeps the generator open until the process ends, which would cut off what is in flight.
    """
    for run, thread in list(_running.values()):
        run.stop()
        thread.join()


class GenerationRun:
    """Iterate it for ShardOutcomes in the order in which shards become durable; leaving the iteration early stops the run."""

    def __init__(
        self, generation: Generation, plans: Sequence[ShardPlan], make_shards: Callable[[Journal], Shards], *, name: str = "run"
    ) -> None:
        """`name` is what progress.json calls the run: `run` or `pilot`."""
        self._generation, self._plans, self._make_shards = generation, plans, make_shards
        self._outcomes: queue.SimpleQueue[ShardOutcome | BaseException | None] = queue.SimpleQueue()
        self._by_number = {plan.shard: plan for plan in plans}
        self._window: Window | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = threading.Event()
        self._closing = threading.Event()
        """Nothing is opened any more; set with `_stop`, and at the end of a run that ends by itself."""
        self._waiting: str | None = None
        self._unpublished: str | None = None
        """Why progress.json was not written the last time."""
        self.progress = Progress(
            prompts_total=sum(plan.rows for plan in plans) * generation.samples, shards_total=len(plans), name=name, gpus=generation.gpus
        )

    def stop(self) -> None:
        """Stop admitting and sending, let what is in flight finish, keep what is done. Any thread; returns at once."""
        self._stop.set()
        self._closing.set()
        window, loop = self._window, self._loop
        if window is not None and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(window.stop)

    def __iter__(self) -> Iterator[ShardOutcome]:
        """Raises GenerationError (after the outcomes that were reached) when the run can't go on."""
        thread = threading.Thread(target=self._work, name="generation", daemon=True)
        _running[id(self)] = (self, thread)
        thread.start()
        try:
            while (item := self._outcomes.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self.stop()
            thread.join()
            _running.pop(id(self), None)

    # -- the background thread -------------------------------------------------------------------------------------

    def _work(self) -> None:
        self._publish()
        try:
            journal = Journal(self._generation.store.work / "journal")
            try:
                self._generate(journal)
                self.progress.phase = "stopped" if self._stop.is_set() else "done"
            finally:
                journal.close()
        except BaseException as error:  # noqa: BLE001 - it is raised again in the consumer's thread
            self.progress.phase, self.progress.message = "failed", str(error)
            self._publish()
            self._outcomes.put(error)
        else:
            self._publish()
            self._outcomes.put(None)

    def _generate(self, journal: Journal) -> None:
        shards = self._make_shards(journal)
        done, todo = pending(self._plans, shards, self._generation.store.entries())
        for outcome in done:
            prompts, facts = self._by_number[outcome.shard].rows * self._generation.samples, outcome.facts
            self.progress.committed(prompts, facts["events"], facts.get("conversations", {}))
            self._report(outcome)
        if not todo:
            return
        opened = (shards.open(plan) for plan in self._admitted(todo))
        committed: queue.SimpleQueue[OpenShard | None] = queue.SimpleQueue()
        first_missing: list[OpenShard] = []
        # Shards whose answers are all known need no engine: loading a model to find that out would be absurd.
        for shard in opened:
            if shard.missing:
                first_missing.append(shard)
                break
            self.progress.replayed(shard)
            self.progress.cached(len(shard.asks))
            self._commit(shards, [shard])
        if not first_missing:
            return
        failure: list[BaseException] = []
        committer = threading.Thread(target=self._commit_loop, args=(shards, committed, failure), name="commit", daemon=True)
        committer.start()
        try:
            with _rare_collections(), asyncio.Runner(loop_factory=_fast_loop()) as runner:
                runner.run(self._answer(journal, _chain(first_missing, opened), committed.put, failure))
        finally:
            committed.put(None)
            committer.join()
        if failure:
            raise failure[0]

    def _admitted(self, plans: Sequence[ShardPlan]) -> Iterator[ShardPlan]:
        """Plans one by one, each when the store has room for more. Waits in the thread that reads ahead, never in the loop."""
        for plan in plans:
            while (why := self._generation.store.room()) is not None and not self._closing.wait(ROOM_SECONDS):
                if self.progress.message != why:
                    log.warning(why)
                self.progress.message = self._waiting = why
            if self._closing.is_set():
                return
            if self.progress.message == self._waiting:
                self.progress.message = None
            yield plan

    async def _answer(
        self, journal: Journal, opened: Iterator[OpenShard], on_complete: Callable[[OpenShard], None], failure: list[BaseException]
    ) -> None:
        fleet = Fleet()
        ticker = asyncio.create_task(self._tick(failure))
        content: ContentWatch | None = None
        discovery, following = self._generation.discovery(), None
        follower = Follower(discovery, self._generation.expected_model) if discovery is not None else None
        try:
            absent = await self._start(fleet, follower)
            self._loop = asyncio.get_running_loop()
            content = self._generation.content() if self._generation.content is not None else None
            self._window = Window(fleet, self._generation.settings, journal, self.progress, on_complete, content)
            self.progress.content = content
            if self._stop.is_set():
                return
            self.progress.phase = "generating"
            if follower is not None:
                following = asyncio.create_task(follower.run(fleet, changed=self._window.changed, say=self._window.say))
            await self._window.run(opened, absent)
        finally:
            self._closing.set()
            ticker.cancel()
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            if content is not None:
                content.close()
            await asyncio.gather(*(server.engine.close() for server in fleet.servers), return_exceptions=True)

    async def _start(self, fleet: Fleet, follower: Follower | None) -> list[Listed]:
        """Start every engine and compare what it is with what the recipe wants, before the first request; returns the absent ones."""
        expected = self._generation.expected_model
        listed = [Listed(engine, limit, expected) for engine, limit in self._generation.engines()]
        if follower is not None:
            listed += await follower.first()
            if not listed:
                raise GenerationError(
                    f"no server: {follower.problem or 'no name has an address'}",
                    todo="start the servers, or correct generation.engine.discover",
                )
        loading = asyncio.create_task(self._say_loading(listed))
        try:
            absent = await start_all(listed, fleet)
        finally:
            loading.cancel()
            self.progress.message = None
        if follower is not None:
            absent = follower.take_back(absent)
        if absent:
            said = "; ".join(why for _, why in absent)
            self.progress.message = f"going on without {len(absent)} server(s), which may join later: {said}"
        return [one for one, _ in absent]

    async def _say_loading(self, listed: Sequence[Listed]) -> None:
        """A server that the run launches loads for minutes: progress says so."""
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            said = [text for one in listed if isinstance(one.engine, LoadingEngine) and (text := one.engine.loading) is not None]
            self.progress.message = "; ".join(said) or None

    async def _tick(self, failure: list[BaseException]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            await loop.run_in_executor(None, self._publish)
            if failure:
                self.stop()

    # -- commits and reports ---------------------------------------------------------------------------------------

    def _commit_loop(self, shards: Shards, committed: queue.SimpleQueue[OpenShard | None], failure: list[BaseException]) -> None:
        for group in _groups(committed):
            if failure:
                continue
            try:
                self._commit(shards, group)
            except (OSError, StoreFault) as error:
                failure.append(
                    GenerationError(
                        f"{error}", where=self._generation.store.root, todo="repair the store and run again: the answers are in the journal"
                    )
                )
                self.stop()
            except Exception as error:  # noqa: BLE001 - a defect; raised again in the consumer's thread, and nothing more is asked for it
                failure.append(error)
                self.stop()

    def _commit(self, shards: Shards, group: Sequence[OpenShard]) -> None:
        for outcome in shards.commit([(opened, self._by_number[opened.shard]) for opened in group]):
            self._report(outcome)

    def _report(self, outcome: ShardOutcome) -> None:
        if outcome.error is None:
            self.progress.shards_done += 1
        else:
            self.progress.shards_failed += 1
        self._outcomes.put(outcome)

    def _publish(self) -> None:
        """Write progress.json. What goes wrong there is said once; figures that can't be had are no reason to leave GPUs idle, and the
        consumer must hear of the run's end in any case."""
        import orjson

        try:
            self._generation.store.put_text("progress.json", orjson.dumps(self.progress.snapshot(), option=orjson.OPT_INDENT_2).decode())
        except Exception as error:
            if self._unpublished != str(error):
                self._unpublished = str(error)
                defect = not isinstance(error, OSError | StoreFault)
                log.error("progress.json is not written: %s: %s", type(error).__name__, error, exc_info=defect)
        else:
            self._unpublished = None


def _groups(committed: queue.SimpleQueue[OpenShard | None]) -> Iterator[list[OpenShard]]:
    """Shards to commit, each as soon as it is there; those that came while others were being committed go together. None ends it."""
    found: list[OpenShard | None] = []
    while not found or found[-1] is not None:
        found = [committed.get()]
        with contextlib.suppress(queue.Empty):
            while len(found) < COMMIT_AT_MOST and found[-1] is not None:
                found.append(committed.get_nowait())
        if group := [opened for opened in found if opened is not None]:
            yield group


def _chain(first: Sequence[OpenShard], rest: Iterator[OpenShard]) -> Iterator[OpenShard]:
    yield from first
    yield from rest


@contextlib.contextmanager
def _rare_collections() -> Generator[None]:
    """Let Python look for cycles every 20,000 new objects instead of every 700, as long as the block runs.

    An answer makes some fifty objects that reference counts free again; looking through them took an eighth of a run's CPU.
    """
    before = gc.get_threshold()
    if before[0] > 0:  # else somebody has switched collections off
        gc.set_threshold(max(before[0], COLLECT_EVERY), *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop, which does the same for less CPU; None (asyncio's own) where there is none, as on Windows."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
