"""The fleet: the engines a recipe names, ready to be started by whoever generates.

Here: from an engine's settings to Engine objects, and the Dagster resource `sglang` that hands them to assets. Not
here: talking to a server (`engines/`) and sharing work among servers (the window).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg

from dflash_assets.resources.engines.base import Engine
from dflash_assets.resources.engines.embedded import EmbeddedEngine
from dflash_assets.resources.engines.openai_chat import AnswerCodec, OpenAIChatEngine
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.resources.weights import locate_weights


class Fleet(dg.ConfigurableResource):
    """Engines for one recipe. `engine` is the recipe's `generation.engine` section without nulls (Dagster's config has none in mappings)."""

    engine: dict[str, Any]
    model: str
    model_revision: str | None
    base_dir: str

    def engines(self, codec: Callable[[], AnswerCodec]) -> list[tuple[Engine, int | None]]:
        """One engine for each server, with its limit of requests in flight (None: the server's own count decides).

        `codec` gives the target model's tokenizer; only a chat endpoint needs it, to tokenise answers that come without ids.
        """
        kind = self.engine["kind"]
        if kind == "embedded":
            return [(self._embedded(), None)]
        key, revision = self.engine.get("api_key_env"), self.model_revision
        if kind == "sglang":
            per_gpu = self.engine.get("concurrent_per_gpu")
            return [
                (SglangEngine(server["url"], model_revision=revision, api_key_env=key), per_gpu and per_gpu * max(1, len(server["gpus"])))
                for server in self.engine["servers"]
            ]
        limit = self.engine["max_in_flight"]
        shared = codec()
        return [
            (
                OpenAIChatEngine(
                    server["url"], model=self.model, codec=shared, max_in_flight=limit, model_revision=revision, api_key_env=key
                ),
                limit,
            )
            for server in self.engine["servers"]
        ]

    def _embedded(self) -> Engine:
        weights = locate_weights(self.engine["weights"], Path(self.base_dir))
        return EmbeddedEngine(
            weights,
            model=self.model,
            precision=self.engine["precision"],
            max_in_flight=self.engine["max_in_flight"],
            cache_gib=self.engine["cache_gib"],
        )
