"""Servers behind a router: a proxy of our own that passes `/generate` on, as the SGLang router does, and knows nothing else."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from dflash_assets.resources.engines.base import EngineError, EngineInfo, EngineLoad
from dflash_assets.resources.engines.routed import RoutedEngine
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.resources.launch.records import Records
from dflash_assets.resources.launch.router import launched_router
from dflash_assets.resources.launch.spec import LaunchError, ServerLaunch
from dflash_assets.simulator.server import ServerSettings
from tests.support.engine_contract import request
from tests.support.simulated import NAME, simulated, small_tokenizer

GONE = "http://127.0.0.1:9"


@contextlib.asynccontextmanager
async def proxy(*servers: str) -> AsyncIterator[str]:
    """Round robin over the servers; a dead one gives 500, as the router says it."""
    turn = 0

    async def generate(asked: web.Request) -> web.Response:
        nonlocal turn
        turn += 1
        async with ClientSession() as session, session.post(servers[turn % len(servers)] + "/generate", data=await asked.read()) as reply:
            return web.Response(body=await reply.read(), status=reply.status, content_type="application/json")

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": NAME}]})

    app = web.Application()
    app.add_routes([web.post("/generate", generate), web.get("/v1/models", models)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def test_answers_come_through_the_router_and_the_rest_from_the_servers() -> None:
    settings = ServerSettings(NAME, context_length=4096, slots=3)

    async def run(first: str, second: str) -> tuple[EngineInfo, EngineLoad, list[int]]:
        async with proxy(first, second) as url:
            engine = RoutedEngine(url, [SglangEngine(first), SglangEngine(second), SglangEngine(GONE)])
            info = await engine.start()
            assert info.server == url
            load = await engine.load()
            asked = [request(small_tokenizer(), f"Number {n}.", max_tokens=8) for n in range(4)]
            replies = await asyncio.gather(*(engine.generate(one) for one in asked))
            await engine.abort("unknown-id")
            await engine.close()
            return info, load, [len(reply.output_ids) for reply in replies]

    with simulated(settings) as (first, one), simulated(settings) as (second, two):
        info, load, lengths = asyncio.run(run(first, second))
        assert (info.model, info.context_length) == (NAME, 4096)
        assert load.max_running == 6, "a server that doesn't answer gives no slots"
        assert all(0 < length <= 8 for length in lengths)
        for server in (one, two):
            paths = [path for path, _ in server.requests]
            assert paths.count("/generate") == 2
            assert "/abort_request" in paths


def test_no_server_and_no_router() -> None:
    async def run(url: str) -> None:
        begun: list[str] = []

        async def begin() -> None:
            begun.append("router")

        with pytest.raises(EngineError, match=r"127\.0\.0\.1:9"):
            await RoutedEngine(GONE, [SglangEngine(GONE)], begin=begin).start()
        assert begun == [], "a router without servers has nothing to do"
        engine = RoutedEngine(GONE, [SglangEngine(url)], begin=begin)
        with pytest.raises(EngineError, match=r"127\.0\.0\.1:9"):
            await engine.start()
        assert begun == ["router"]
        await engine.close()

    with simulated() as (url, _):
        asyncio.run(run(url))


def test_the_launch_line(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    environment = {"PYTHONPATH": str(packages)}
    servers = [
        ServerLaunch(f"http://127.0.0.1:{port}", "python3", NAME, NAME, None, 64, gpus=(port % 2,), environment=environment)
        for port in (30000, 30007)
    ]
    section = {"url": "http://127.0.0.1:30100", "policy": "power_of_two", "extra_flags": ["--log-level", "debug"]}
    router = launched_router(section, servers, recipe="r", ready_seconds=1, stop_seconds=1, records=Records(tmp_path / "state"))
    with pytest.raises(LaunchError, match="python3 has no sglang-router\n  -> pip install sglang-router there"):
        router.prepare()
    info = packages / "sglang_router-0.3.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang-router\nVersion: 0.3.2\n")
    line = router.prepare()
    assert line[:7] == ["python3", "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", "30100"]
    at = line.index("--worker-urls")
    assert line[at + 1 : at + 5] == ["http://127.0.0.1:30000", "http://127.0.0.1:30007", "--policy", "power_of_two"]
    assert "--disable-retries" in line
    assert line[line.index("--prometheus-port") + 1] == "30101"
    assert line[-2:] == ["--log-level", "debug"]
    assert router.launch.gpus == ()
