"""The fleet: the engines a recipe names, ready to be started by whoever generates.

Here: from an engine's settings to Engine objects, and the Dagster resource `sglang` that hands them to assets. Not
here: talking to a server (`engines/`) and sharing work among servers (the window).
"""

import os
from pathlib import Path
from typing import Any

import dagster as dg

from dflash_assets.resources.engines.base import Engine


class Fleet(dg.ConfigurableResource):
    """Engines for one recipe. `engine` is the recipe's `generation.engine` section as a plain mapping."""

    engine: dict[str, Any]
    model: str
    base_dir: str

    def engines(self) -> list[tuple[Engine, int | None]]:
        """One engine for each server, with its limit of requests in flight (None: the server's own count decides)."""
        kind = self.engine["kind"]
        if kind == "embedded":
            return [(self._embedded(), None)]
        key = self._api_key()
        found: list[tuple[Engine, int | None]] = []
        for server in self.engine["servers"]:
            if kind == "sglang":
                from dflash_assets.resources.engines.sglang import SglangEngine

                per_gpu = self.engine["concurrent_per_gpu"]
                found.append((SglangEngine(server["url"], api_key=key), per_gpu and per_gpu * max(1, len(server["gpus"]))))
            else:
                from dflash_assets.resources.engines.openai_chat import OpenAIChatEngine

                found.append((OpenAIChatEngine(server["url"], model=self.model, api_key=key), self.engine["max_in_flight"]))
        return found

    def _embedded(self) -> Engine:
        from dflash_assets.resources.engines.embedded import EmbeddedEngine
        from dflash_assets.resources.weights import locate_weights

        weights = locate_weights(self.engine["weights"], Path(self.base_dir))
        return EmbeddedEngine(
            weights, model=self.model, precision=self.engine["precision"], max_in_flight=self.engine["max_in_flight"],
            cache_gib=self.engine["cache_gib"],
        )

    def _api_key(self) -> str | None:
        name = self.engine["api_key_env"]
        return os.environ.get(name) if name else None
