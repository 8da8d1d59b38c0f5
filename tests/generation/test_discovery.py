"""Servers behind a DNS name join and leave a running window; a made-up resolver says which there are."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dflash_assets.generation.run import GenerationRun
from dflash_assets.recipe.generation import SglangEngine as EngineSpec
from dflash_assets.resources.discovery import Discovery, Name, by_system
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.resources.store import DirectoryStore
from dflash_assets.simulator.server import ServerSettings
from tests.support.generation import make_run
from tests.support.playing import LiveServer, live, live_settings, write_live_shards
from tests.support.simulated import NAME


class Zone:
    """A resolver whose answer is what the test says at the moment."""

    def __init__(self, urls: Sequence[str] = ()) -> None:
        self.urls, self.broken, self.asked = list(urls), False, 0

    async def __call__(self, dns: str, port: int) -> list[str]:
        assert (dns, port) == ("gpus.internal", 30000)
        self.asked += 1
        if self.broken or not self.urls:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return list(self.urls)


def discovery(zone: Zone, every: float = 0.05) -> Discovery:
    return Discovery([Name("gpus.internal", 30000, every)], SglangEngine, resolve=zone)


def run_with(folder: Path, zone: Zone, shards: int) -> GenerationRun:
    plans = write_live_shards(folder, shards, 10)
    run = make_run(DirectoryStore(folder / "store", "test"), plans, [], window=live_settings(), expected_model=NAME)
    run._generation = replace(run._generation, discovery=lambda: discovery(zone))
    return run


def servers(stack: ExitStack, count: int, **changes: Any) -> list[LiveServer]:
    settings = ServerSettings(NAME, **{"context_length": 4096, "slots": 4, "tokens_per_second": 40.0, **changes})
    return [stack.enter_context(live(settings)) for _ in range(count)]


def asked(server: LiveServer) -> int:
    return len(server.server.bodies)


def test_servers_join_and_leave_while_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dflash_assets.generation import joining

    monkeypatch.setattr(joining, "JOIN_SECONDS", 0.05)
    with ExitStack() as stack:
        first, second = servers(stack, 2)
        zone = Zone([first.url])
        run = run_with(tmp_path, zone, 12)
        joined = left_at = None
        for outcome in run:
            assert outcome.error is None
            if joined is None:
                zone.urls = [first.url, second.url]
                joined = True
            elif left_at is None and asked(second) > 8:
                zone.urls = [second.url]
                left_at = asked(first)
        assert left_at is not None, "the second server has joined"
        # Its slots were full when its address went, and a lookup may just have been made: a few more, and then none.
        assert asked(first) <= left_at + 3 * 4
        assert asked(first) + asked(second) == 120, "nothing asked twice, nothing lost"
        assert [name for name in run.progress.servers if name.startswith("http")] == [second.url]


def test_a_resolver_in_trouble_does_not_empty_the_fleet(tmp_path: Path) -> None:
    with ExitStack() as stack:
        [only] = servers(stack, 1)
        zone = Zone([only.url])
        run = run_with(tmp_path, zone, 4)
        for outcome in run:
            assert outcome.error is None
            zone.broken = True
        assert asked(only) == 40
        assert zone.asked > 2


def test_a_name_without_addresses_at_the_start_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"gpus\.internal can't be looked up: Name or service not known"):
        list(run_with(tmp_path, Zone(), 1))


def test_the_systems_resolver_gives_one_url_an_address() -> None:
    assert asyncio.run(by_system("localhost", 30000)) == ["http://127.0.0.1:30000"]
    with pytest.raises(OSError, match=r"."):
        asyncio.run(by_system("no-such-host.invalid", 1))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "no server"),
        ({"discover": [{"dns": "a b"}]}, "pattern"),
        ({"discover": [{"dns": "gpus"}], "router": {"url": "http://127.0.0.1:1"}}, "leave `launch`"),
    ],
)
def test_a_recipe_without_servers_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        EngineSpec.model_validate({"kind": "sglang", **fields})


def test_a_resolver_that_never_answers_is_given_up_and_said() -> None:
    """One silent name keeps neither the others nor the run waiting, and its addresses are kept."""
    silent = False

    async def resolve(dns: str, port: int) -> list[str]:
        if dns == "slow.internal" and silent:
            await asyncio.sleep(3600)
        return [f"http://{dns}:{port}"]

    names = [Name("slow.internal", 1, 0.1), Name("quick.internal", 2, 0.1)]
    discovery = Discovery(names, SglangEngine, resolve=resolve, seconds=0.05)

    async def twice() -> tuple[frozenset[str], frozenset[str]]:
        nonlocal silent
        before = await discovery.urls()
        silent = True
        return before, await discovery.urls()

    before, after = asyncio.run(twice())
    assert before == after == {"http://slow.internal:1", "http://quick.internal:2"}
    assert discovery.problem == "slow.internal can't be looked up: no answer from the resolver in 0 s"
