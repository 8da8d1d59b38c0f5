"""A whole generation run against simulated servers: servers that can die and come back, prompts in their vocabulary."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq

from dflash_assets.errors import GenerationError
from dflash_assets.generation.outcomes import AnswerRules
from dflash_assets.generation.settings import WindowSettings
from dflash_assets.generation.shards import ShardOutcome, ShardPlan
from dflash_assets.resources.engines.base import Engine
from dflash_assets.resources.engines.openai_chat import OpenAIChatEngine
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.resources.store import DirectoryStore
from dflash_assets.rows import SHARD_PROMPT
from dflash_assets.simulator.server import ServerSettings, SimulatedServer, serve
from dflash_assets.tables import canonical_json, digest, write_rows
from tests.support.generation import facts, make_run, prompt_row, settings
from tests.support.simulated import NAME, answer_book, small_tokenizer

ROUTES: dict[str, str] = {"chat": "/v1/chat/completions", "generate": "/generate"}


def engine_at(url: str, route: str) -> Engine:
    """The engine that asks through this route."""
    return OpenAIChatEngine(url, model=NAME, codec=small_tokenizer(), max_in_flight=8) if route == "chat" else SglangEngine(url)


def live_settings(**changes: object) -> WindowSettings:
    """Window settings for the simulator's vocabulary."""
    stops = small_tokenizer().stop_token_ids
    rules = AnswerRules(frozenset(stops), small_tokenizer().vocab_size, None)
    return settings(**{"stop_token_ids": stops, "rules": rules, **changes})


def write_live_shards(folder: Path, shards: int, size: int, thinking: bool = False) -> list[ShardPlan]:
    """Shards whose prompts ("question 0", ...) are rendered and tokenised as the simulated server would."""
    plans: list[ShardPlan] = []
    for shard in range(shards):
        rows: list[dict[str, Any]] = []
        for number in range(shard * size, shard * size + size):
            messages = [{"role": "user", "content": f"question {number}"}]
            ids = list(small_tokenizer().encode_prompt(messages, None, thinking))
            rows.append({**prompt_row(number, shard), "messages_json": canonical_json(messages), "thinking": thinking, "prompt_ids": ids})
        path = folder / f"live-{shard}.parquet"
        write_rows(path, SHARD_PROMPT, rows)
        plans.append(ShardPlan(shard, path, size, digest(*(row["prompt_id"] for row in rows))))
    return plans


class LiveServer:
    """A simulated server in a thread of its own that can be stopped (connections refused) and started again on its port."""

    def __init__(
        self, server_settings: ServerSettings | None = None, script: Sequence[Mapping[str, Any]] = (), mean_tokens: float = 8.0
    ) -> None:
        self._settings = server_settings or ServerSettings(NAME, context_length=4096)
        self._book = answer_book(mean_tokens, 0.3)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._runner: Any = None
        self._port = 0
        self.server = SimulatedServer(self._settings, self._book, script)
        self.start()

    @property
    def url(self) -> str:
        """Base URL."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Serve (again)."""
        self._runner, self._port = asyncio.run_coroutine_threadsafe(serve(self.server, self._port), self._loop).result(10)

    def stop(self) -> None:
        """Cut every connection and refuse new ones."""
        runner, self._runner = self._runner, None
        if runner is not None:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), self._loop).result(10)

    def close(self) -> None:
        """Stop for good."""
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def asked(self, path: str) -> list[float]:
        """Times (monotonic, seconds) of the requests to a path."""
        return [at for asked, at in self.server.requests if asked == path]


@contextlib.contextmanager
def live(*args: Any, **kwargs: Any) -> Iterator[LiveServer]:
    """A LiveServer that ends with the block."""
    server = LiveServer(*args, **kwargs)
    try:
        yield server
    finally:
        server.close()


@dataclass
class Played:
    """What a run over a script came to."""

    outcomes: list[ShardOutcome]
    rows: list[dict[str, Any]]
    """Committed rows, shard after shard."""
    error: GenerationError | None
    seconds: float
    snapshot: dict[str, Any]
    asked_at: list[float]
    """Times of the generation requests."""
    bodies: list[dict[str, Any]]
    paths: list[str] = field(default_factory=list)

    def said(self) -> str:
        """Everything a person was told."""
        return f"{self.error} {self.snapshot}"


def committed(store: DirectoryStore) -> list[dict[str, Any]]:
    """Rows of all committed shards, in order."""
    names = sorted(name for name in store.entries() if name.startswith("completions/"))
    return [row for name in names for row in pq.read_table(store.local(store.entries()[name].files[0].path)).to_pylist()]


def play_run(
    route: str,
    script: Sequence[Mapping[str, Any]],
    *,
    shards: int = 1,
    size: int = 1,
    slots: int = 1,
    form: str = "{}",
    expected_model: str | None = NAME,
    window: WindowSettings | None = None,
    thinking: bool = False,
    after_shard: Callable[[LiveServer, ShardOutcome], None] | None = None,
) -> Played:
    """Run `shards` shards of `size` prompts against one server that plays the script, `slots` requests in flight at most.

    With one slot and one prompt a shard, a shard is only sent when the one before is done: the first prompt meets the script.
    `after_shard` is called with each outcome, while the run goes on.
    """
    with tempfile.TemporaryDirectory() as place, live(script=script) as server:
        store = DirectoryStore(Path(place) / "store", "test")
        run = make_run(
            store,
            write_live_shards(Path(place), shards, size, thinking),
            [],
            window=window or live_settings(open_prompts_per_slot=1),
            shard_facts=facts(failure_limit=1.0),
            expected_model=expected_model,
        )
        object.__setattr__(run._generation, "engines", lambda: [(engine_at(form.format(server.url), route), slots)])
        outcomes: list[ShardOutcome] = []
        error: GenerationError | None = None
        began = time.monotonic()
        try:
            for outcome in run:
                outcomes.append(outcome)
                if after_shard is not None:
                    after_shard(server, outcome)
        except GenerationError as fault:
            error = fault
        seconds = time.monotonic() - began
        snapshot = orjson.loads(store.local("progress.json").read_bytes())
        paths = [path for path, _ in server.server.requests]
        return Played(outcomes, committed(store), error, seconds, snapshot, server.asked(ROUTES[route]), list(server.server.bodies), paths)
