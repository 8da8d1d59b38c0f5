"""The checks of `dflash-assets doctor` on servers: named, launched, behind a router, or behind a DNS name.

Here: which servers there are, and asking each of them. Not here: what launching needs (`launch_checks.py`), other checks (`doctor.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from dflash_assets.cli.doctor import Check
from dflash_assets.errors import GenerationError
from dflash_assets.recipe.generation import OpenAIChatEngine, SglangEngine
from dflash_assets.recipe.recipe import Recipe
from dflash_assets.resources.discovery import Discovery, Resolve, by_system, look_up
from dflash_assets.resources.engines.base import Engine, EngineError

PROBE_SECONDS = 25.0
AT_ONCE = 32
"""Servers asked at the same time: two hundred that are down must not take an hour."""
NO_SERVER = (
    "start the servers, or correct generation.engine.discover. A name of a Kubernetes service is known inside the cluster only: there, run "
    "this in a pod"
)


def servers(recipe: Recipe, engine: SglangEngine | OpenAIChatEngine, base_dir: Path, resolve: Resolve = by_system) -> Iterator[Check]:
    """A check for each server that should be there now, and before them those of launching and of names."""
    from dflash_assets.assets.build import build_resources
    from dflash_assets.assets.server_check import server_check
    from dflash_assets.assets.wiring import tokenizer_of
    from dflash_assets.resources.fleet import Fleet

    fleet = build_resources(recipe, base_dir)["sglang"]
    assert isinstance(fleet, Fleet)
    running = {server.url for server in engine.servers}
    if isinstance(engine, SglangEngine) and engine.launch is not None:
        from dflash_assets.cli.launch_checks import launch_checks

        group = fleet.launch_group(lambda _: None)
        assert group is not None
        yield from launch_checks(group, engine.launch.on_run)
        states = [server.status().state for server in group.servers]
        running = {server.url for server, state in zip(engine.servers, states, strict=True) if state == "running"}
    check = server_check(recipe, base_dir)
    clients = [client for client, _ in fleet.attached(lambda: tokenizer_of(recipe.target_model, base_dir), check)] if engine.servers else []
    urls = [server.url for server in engine.servers]
    if isinstance(engine, SglangEngine) and engine.router is not None:
        # One client for all servers: it asks them, and then the router.
        urls = [engine.router.url]
        running = set(urls) if running else set()
    asked = [(url, client) for url, client in zip(urls, clients, strict=True) if url in running]
    discovery = fleet.discovery(check)
    if discovery is not None:
        found, behind = _names(discovery, known=set(urls), resolve=resolve)
        yield from found
        asked += behind
    yield from asyncio.run(_all(asked, recipe.target_model.name))


def _names(discovery: Discovery, *, known: set[str], resolve: Resolve) -> tuple[list[Check], list[tuple[str, Engine]]]:
    """A check for each name, and the servers behind them that nothing else names."""
    checks: list[Check] = []
    urls: dict[str, None] = {}
    for found in asyncio.run(look_up(discovery.names, resolve=resolve)):
        name = f"name {found.name.dns}"
        said = found.problem or f"{len(found.urls)} server(s) on port {found.name.port}"
        checks.append(Check(name, found.problem is None and bool(found.urls), said, NO_SERVER))
        urls |= dict.fromkeys(found.urls)
    return checks, [(url, discovery.make(url)) for url in urls if url not in known]


async def _all(asked: Sequence[tuple[str, Engine]], model: str) -> list[Check]:
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(url: str, client: Engine) -> Check:
        async with turn:
            return await _probe(url, client, model)

    return await asyncio.gather(*(one(url, client) for url, client in asked))


async def _probe(url: str, client: Engine, model: str) -> Check:
    name = f"server {url}"
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            info = await client.start()
            load = await client.load()
    except GenerationError as error:
        return Check(name, False, error.what, error.todo or "")
    except (EngineError, TimeoutError) as error:
        return Check(name, False, str(error) or f"no answer in {PROBE_SECONDS:.0f} s", "start the server, or correct its url")
    finally:
        await client.close()
    if info.model != model:
        return Check(name, False, f"serves {info.model}", f"start it with {model}, or change target_model.name")
    return Check(name, True, f"{info.engine} {info.version}, {info.model}, runs {load.max_running} at once")
