"""SIGKILL at random moments of a run with a bucket in the loop: every time the bucket is whole, and the re-run finishes it.

Six kills on moto; with `-m s3` on a real server 12, with DFLASH_FULL=1 four times 25, each time with a bucket and a seed of its own.
At one of the kills the working copy is lost with its machine: another machine goes on from the bucket alone. Each piece says
in which phase of the upload its kills fell.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dflash_assets.simulator.server import ServerSettings
from tests.support.killed_run import prepare
from tests.support.playing import LiveServer, live, write_live_shards
from tests.support.s3 import Server
from tests.support.simulated import NAME, small_tokenizer

ROOT = Path(__file__).parents[2]
SHARD, SLOTS = 10, 8
FULL = os.environ.get("DFLASH_FULL") == "1"
KILLS, PIECES = (25, 4) if FULL else (12, 1)
MOTO_KILLS = 6
PREFIX = "runs/test/"


@dataclass
class Watcher:
    """Looks at the bucket after each kill. What was read whole once isn't read again while its ETag stays the same."""

    server: Server
    read: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict[tuple[str, str], tuple[int, str]])

    def __post_init__(self) -> None:
        self._client = self.server.client()

    def get(self, path: str) -> bytes:
        """An object under the prefix."""
        return self._client.get_object(Bucket=self.server.bucket, Key=PREFIX + path)["Body"].read()

    def listed(self) -> dict[str, str]:
        """ETags by path under the prefix."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.server.bucket, Prefix=PREFIX)
        return {item["Key"].removeprefix(PREFIX): item["ETag"] for page in pages for item in page.get("Contents", [])}

    def whole(self) -> dict[str, Any]:
        """The manifest's entries, after checking that every file they name is there with its size and sha256."""
        there = self.listed()
        if "manifest.json" not in there:
            return {}
        entries = json.loads(self.get("manifest.json"))["entries"]
        for entry in entries.values():
            for file in entry["files"]:
                seen = (file["path"], there[file["path"]])
                if seen not in self.read:
                    data = self.get(file["path"])
                    self.read[seen] = (len(data), hashlib.sha256(data).hexdigest())
                assert self.read[seen] == (file["bytes"], file["sha256"])
        return entries

    def phase(self, copy: Path, entries: dict[str, Any]) -> str:
        """How far the work of a killed process had got, by what it left."""
        named = {file["path"] for entry in entries.values() for file in entry["files"]}
        if any(path.startswith("completions/") and path not in named for path in self.listed()):
            return "between an upload and the manifest"
        local = json.loads((copy / "manifest.json").read_text())["entries"] if (copy / "manifest.json").exists() else {}
        if any(entries.get(name) != entry for name, entry in local.items()):
            return "between a local commit and its upload"
        if any(path.stat().st_size > 5 for path in (copy / ".work" / "journal").glob("*.log")):
            return "with answers only in the journal"
        return "with nothing to lose but what was in flight"


def one_process(
    folder: Path, live_server: LiveServer, server: Server, copy: Path, kill_after: tuple[int, float] | None
) -> tuple[str, bool]:
    """Run; kill it so many shards and seconds after it has the lock. Returns what it said, and whether it was killed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.killed_upload", str(folder), live_server.url, server.url(PREFIX), str(copy)],
        cwd=ROOT,
        env={**os.environ, **server.environment()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said = process.stdout.readline()
    if kill_after is not None and said == "began\n":
        shards, seconds = kill_after
        while said.count("shard") < shards and (line := process.stdout.readline()):
            said += line
        time.sleep(seconds)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
    rest, errors = process.communicate(timeout=60)
    killed = process.returncode == -signal.SIGKILL
    assert killed or process.returncode == 0, errors
    return said + rest, killed


@pytest.mark.timeout(480)
@pytest.mark.parametrize("piece", range(PIECES))
def test_a_run_killed_again_and_again_ends_whole(
    server: Server, tmp_path: Path, piece: int, capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    count = MOTO_KILLS if server.kind == "moto" else KILLS
    source = random.Random(int(os.environ.get("DFLASH_SEED", "11")) + piece)
    plans = write_live_shards(tmp_path, 4 * count, SHARD)
    prepare(tmp_path, plans, small_tokenizer().stop_token_ids, small_tokenizer().vocab_size, NAME)
    watcher = Watcher(server)
    phases: Counter[str] = Counter()
    moved = 0
    copy = tmp_path / "copy-0"
    grown = [0]
    with live(ServerSettings(NAME, context_length=4096, slots=SLOTS, tokens_per_second=60.0)) as live_server:
        for number in range(count):
            _, was_killed = one_process(tmp_path, live_server, server, copy, (source.choice([0, 1, 1, 2, 3]), source.uniform(0, 0.6)))
            entries = watcher.whole()
            if was_killed:
                phases[watcher.phase(copy, entries)] += 1
            grown.append(len(entries))
            if number == count // 2:
                # The machine is gone with its disk. Its lease runs out on the server's clock; here its holder is declared dead.
                shutil.rmtree(copy)
                copy = tmp_path / "copy-1"
                server.client().delete_object(Bucket=server.bucket, Key=PREFIX + "lock.json")
                moved += 1
            if server.kind == "real" and number % 5 == 4:
                with capsys.disabled():
                    print(f"\n{number + 1} of {count} kills, {grown[-1]} of {len(plans)} shards in the bucket, all whole", flush=True)
        asked_before = len(live_server.server.bodies)
        said, was_killed = one_process(tmp_path, live_server, server, copy, None)
        assert not was_killed
        entries = watcher.whole()
        asked = len(live_server.server.bodies)
        again, _ = one_process(tmp_path, live_server, server, tmp_path / "copy-2", None)
        assert len(live_server.server.bodies) == asked, "from the bucket alone a finished job asks nothing"
    assert "settled" in said
    assert "sent 0" in again
    killed = phases.total()
    assert killed >= count * 0.6, "most were killed in the middle"
    assert moved == 1
    assert grown == sorted(grown), "what is in the bucket stays"
    rows = [
        row
        for name, entry in sorted(entries.items())
        if name.startswith("completions/")
        for row in pq.read_table(io.BytesIO(watcher.get(entry["files"][0]["path"]))).to_pylist()
    ]
    prompts = 4 * count * SHARD
    assert Counter(row["prompt_id"] for row in rows) == Counter({f"p{number:05d}": 1 for number in range(prompts)})
    assert {row["outcome"] for row in rows} == {"ok"}
    # A kill costs what was in flight; the lost machine also what its journal hadn't mirrored yet (some tenths of a second here).
    assert asked - prompts <= (killed + moved) * 2 * SLOTS + 2 * SHARD * SLOTS, (asked, prompts)
    record_property(
        "counted",
        f"{killed} kills ({', '.join(f'{times} {phase}' for phase, times in phases.most_common())}), 1 machine lost: "
        f"{prompts} prompts, each once; {asked - prompts} asked again; {asked - asked_before} by the last run",
    )
