"""One window over four servers against a gather for each file: busy slots, elapsed time, client CPU.

    python benchmarks/window.py            # 3,000 prompts, answers of 0.8 s on average
    python benchmarks/window.py --full     # 8,000 prompts, answers of 2.4 s on average (about 10 minutes)

Four simulated servers of 64 slots with a queue, in a process of their own; the time an answer takes is log-normal (the 99th
percentile 5.4 times the mean, cut at 10.8 times), a third of the prompts ("code") three times quicker than the rest; replies hold
1,000 ids and their text. Both clients ask the same prompts in shards (files) of 500:

    window    this product's run, journal and committed shards included
    files     one aiohttp client that gathers the 500 requests of a file, round-robin over the servers, and writes the file

Busy is the share of slot time spent answering between the moment all slots are first busy and the moment the last request
gets its slot: without start and tail. CPU is that of the whole client process while it asks. The last line is JSON: value is the
window's busy share, `baseline` that of the files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from dflash_assets.generation.outcomes import AnswerRules
from dflash_assets.generation.requests import key_facts
from dflash_assets.generation.run import Generation, GenerationRun
from dflash_assets.generation.settings import WindowSettings
from dflash_assets.generation.shards import ShardFacts, ShardPlan, Shards
from dflash_assets.resources.engines.base import SamplingParameters
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.resources.store import DirectoryStore
from dflash_assets.rows import SHARD_PROMPT
from dflash_assets.tables import digest, write_rows

SERVERS, SLOTS, SHARD, IDS = 4, 64, 500, 1000
SIGMA, CAP = 0.9, 10.8
STOP = 2
TARGET_BUSY, TARGET_CPU_MS = 0.99, 0.5


def main() -> None:
    """Measure both, print a table and the line of JSON."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--full", action="store_true", help="8,000 prompts, 2.4 s on average")
    arguments.add_argument("--child", nargs=3, metavar=("CLIENT", "FOLDER", "URLS"), help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.child:
        CLIENTS[chosen.child[0]](Path(chosen.child[1]), chosen.child[2].split(","))
        return
    prompts, mean = (8000, 2.4) if chosen.full else (3000, 0.8)
    found: dict[str, dict[str, float]] = {}
    print(f"{prompts} prompts, {SERVERS} servers of {SLOTS} slots; work bound {bound(prompts, mean):.1f} s")
    print(f"{'client':<10}{'elapsed s':>10}{'busy':>8}{'tail s':>8}{'CPU ms/request':>16}{'peak MiB':>10}")
    for name in CLIENTS:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            write_prompts(folder, prompts)
            found[name] = result = measure(name, folder, prompts, mean)
        print(
            f"{name:<10}{result['elapsed']:>10.1f}{result['busy']:>8.3f}{result['tail']:>8.1f}{result['cpu_ms']:>16.3f}{result['peak_mib']:>10.0f}",
            flush=True,
        )
    ours, files = found["window"], found["files"]
    ok = ours["busy"] >= TARGET_BUSY and ours["cpu_ms"] <= TARGET_CPU_MS and ours["elapsed"] < files["elapsed"]
    print(
        json.dumps(
            {
                "name": "window",
                "value": round(ours["busy"], 4),
                "unit": "share of slot time busy, without start and tail",
                "target": TARGET_BUSY,
                "ok": ok,
                "baseline": round(files["busy"], 4),
                "cpu_ms_per_request": round(ours["cpu_ms"], 3),
                "cpu_target_ms": TARGET_CPU_MS,
            }
        )
    )


def measure(name: str, folder: Path, prompts: int, mean: float) -> dict[str, float]:
    """Start the servers, let the client ask them, and count what the servers saw."""
    urls: multiprocessing.SimpleQueue[list[str]] = multiprocessing.SimpleQueue()
    fleet = multiprocessing.Process(target=serve_fleet, args=(urls, folder / "spans.json", prompts, mean), daemon=True)
    fleet.start()
    addresses = urls.get()
    done = subprocess.run(
        [sys.executable, __file__, "--child", name, str(folder), ",".join(addresses)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    if done.returncode:
        fleet.terminate()
        sys.exit(f"{name}: {done.stderr[-2000:]}")
    fleet.join(30)
    said = json.loads(done.stdout.splitlines()[-1])
    spans = [(start, end) for start, end in json.loads((folder / "spans.json").read_text())]
    if len(spans) != prompts:
        sys.exit(f"{name}: {len(spans)} answers were given for {prompts} prompts")
    return {**busy(spans), "cpu_ms": said["cpu"] / prompts * 1e3, "peak_mib": said["peak_mib"]}


def busy(spans: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Elapsed seconds, busy share and tail from the times at which answers began and ended."""
    first, last, started = min(start for start, _ in spans), max(end for _, end in spans), max(start for start, _ in spans)
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    running, full = 0, first
    for at, change in changes:
        running += change
        if running == SERVERS * SLOTS:
            full = at
            break
    worked = sum(max(0.0, min(end, started) - max(start, full)) for start, end in spans)
    return {"elapsed": last - first, "busy": worked / ((started - full) * SERVERS * SLOTS), "tail": last - started}


# -- prompts and servers -----------------------------------------------------------------------------------------------


def seconds_of(number: int, mean: float) -> float:
    """How long the answer to a prompt takes: the same for every client."""
    own = mean * (3 / 7 if number % 3 == 0 else 9 / 7)
    drawn = random.Random(number).lognormvariate(math.log(own) - SIGMA**2 / 2, SIGMA)
    return min(drawn, CAP * own)


def bound(prompts: int, mean: float) -> float:
    """Seconds if every slot were always busy."""
    return sum(seconds_of(number, mean) for number in range(prompts)) / (SERVERS * SLOTS)


def prompt_ids(number: int) -> list[int]:
    """200 ids; the second one tells the server which prompt it is."""
    return [1, number + 3, *(random.Random(number).randrange(3, 5000) for _ in range(198))]


def write_prompts(folder: Path, count: int) -> None:
    """Shards of 500 prompts."""
    for shard, start in enumerate(range(0, count, SHARD)):
        rows = (
            {
                "prompt_id": f"p{number:06d}",
                "source": "maths" if number % 3 else "code",
                "source_row": f"f:{number}",
                "source_revision": "r",
                "messages_json": "[]",
                "tools_json": None,
                "category": "math",
                "language": "en",
                "thinking": False,
                "prompt_tokens": 200,
                "flags": [],
                "prompt_ids": prompt_ids(number),
                "shard": shard,
            }
            for number in range(start, min(start + SHARD, count))
        )
        write_rows(folder / f"prompts-{shard:04d}.parquet", SHARD_PROMPT, rows)


def serve_fleet(urls: multiprocessing.SimpleQueue[list[str]], spans_file: Path, prompts: int, mean: float) -> None:
    """The servers' process: SGLang's routes, 64 slots and a queue each; ends when all prompts are answered."""
    spans: list[tuple[float, float]] = []
    source = random.Random(0)
    ids = [*(source.randrange(3, 5000) for _ in range(IDS - 1)), STOP]
    text = " ".join("answer" for _ in range(IDS))
    whole = orjson.dumps(
        {
            "text": text,
            "output_ids": ids,
            "meta_info": {
                "finish_reason": {"type": "stop", "matched": STOP},
                "prompt_tokens": 200,
                "completion_tokens": IDS,
                "cached_tokens": 0,
            },
        }
    )

    async def serve() -> None:
        done = asyncio.Event()
        runners: list[web.AppRunner] = []
        found: list[str] = []
        for _ in range(SERVERS):
            runner = web.AppRunner(one_server(done), access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()
            runners.append(runner)
            found.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        urls.put(found)
        await done.wait()
        await asyncio.sleep(1.0)
        for runner in runners:
            await runner.cleanup()

    def one_server(done: asyncio.Event) -> web.Application:
        slots = asyncio.Semaphore(SLOTS)
        held = 0

        async def generate(request: web.Request) -> web.Response:
            nonlocal held
            number = orjson.loads(await request.read())["input_ids"][1] - 3
            held += 1
            async with slots:
                began = time.monotonic()
                await asyncio.sleep(seconds_of(number, mean))
                spans.append((began, time.monotonic()))
            held -= 1
            if len(spans) == prompts:
                done.set()
            return web.Response(body=whole, content_type="application/json")

        async def loads(_request: web.Request) -> web.Response:
            running = min(held, SLOTS)
            return web.json_response(
                {"loads": [{"num_running_reqs": running, "num_waiting_reqs": held - running, "max_running_requests": SLOTS}]}
            )

        def fixed(body: dict[str, Any]) -> Any:
            async def reply(_request: web.Request) -> web.Response:
                return web.json_response(body)

            return reply

        app = web.Application()
        app.add_routes(
            [
                web.post("/generate", generate),
                web.get("/v1/loads", loads),
                web.get("/model_info", fixed({"model_path": "m"})),
                web.get("/server_info", fixed({"version": "0.5.23", "max_running_requests": SLOTS})),
                web.get("/v1/models", fixed({"data": [{"id": "m"}]})),
            ]
        )
        return app

    asyncio.run(serve())
    spans_file.write_text(json.dumps(spans))


# -- the clients -------------------------------------------------------------------------------------------------------


def window(folder: Path, urls: Sequence[str]) -> None:
    """The product's own run."""
    store = DirectoryStore(folder / "store", "window")
    paths = sorted(folder.glob("prompts-*.parquet"))
    rows = [len(prompts) for prompts in map(read_prompts, paths)]
    plans = [ShardPlan(shard, path, count, digest(path.name)) for shard, (path, count) in enumerate(zip(paths, rows, strict=True))]
    settings = WindowSettings(
        sampling=SamplingParameters(max_tokens=4096),
        stop_token_ids=(STOP,),
        rules=AnswerRules(frozenset({STOP}), 5000, None),
        template_kwargs_json="{}",
        max_attempts=4,
        open_prompts_per_slot=16,
        deadline_seconds=300.0,
        give_up_seconds=60.0,
        drain_seconds=1.0,
    )
    facts = ShardFacts(
        keys=key_facts({"model": "m"}, "t"),
        samples=1,
        sampling_json="{}",
        model="m",
        tokenizer_sha="t",
        template_sha="t",
        fingerprint="f",
        failure_limit=0.0,
    )
    began = time.process_time()
    generation = Generation(store, settings, lambda: [(SglangEngine(url), None) for url in urls], "m")
    outcomes = list(GenerationRun(generation, plans, lambda journal: Shards(store, journal, facts)))
    assert all(outcome.error is None for outcome in outcomes)
    report(began)


def files(folder: Path, urls: Sequence[str]) -> None:
    """A gather for each file."""
    began = time.process_time()
    paths = sorted(folder.glob("prompts-*.parquet"))

    async def ask_all() -> None:
        timeout = aiohttp.ClientTimeout(total=300)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:

            async def ask(place: int, ids: Sequence[int]) -> dict[str, Any]:
                body = orjson.dumps({"input_ids": ids, "sampling_params": {"max_new_tokens": 4096, "stop_token_ids": [STOP]}})
                headers = {"Content-Type": "application/json"}
                async with session.post(f"{urls[place % len(urls)]}/generate", data=body, headers=headers) as response:
                    reply = orjson.loads(await response.read())
                return {"text": reply["text"], "output_ids": reply["output_ids"]}

            for path in paths:
                answers = await asyncio.gather(*(ask(place, ids) for place, ids in enumerate(read_prompts(path))))
                path.with_suffix(".jsonl").write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in answers))

    asyncio.run(ask_all())
    report(began)


def read_prompts(path: Path) -> list[list[int]]:
    import pyarrow.parquet as pq

    return pq.read_table(path, columns=["prompt_ids"])["prompt_ids"].to_pylist()


def report(began: float) -> None:
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    print(json.dumps({"cpu": time.process_time() - began, "peak_mib": peak}))


CLIENTS = {"window": window, "files": files}


if __name__ == "__main__":
    main()
