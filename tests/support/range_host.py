"""`python -m tests.support.range_host FOLDER S3 COPY FIRST LAST`: one host that answers a range of shards into a bucket.

FOLDER holds the plans (`tests.support.killed_run.prepare`). `DFLASH_TEST_BRIDGES`: `port=socket` pairs; each port on this host's loopback
is a server outside, reached through a socket in the file system. So a host may live in a network namespace of its own, and
be cut off. `DFLASH_TEST_TTL`, `_BEAT`: seconds of its lease.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from dflash_assets.generation.outcomes import AnswerRules
from dflash_assets.generation.shards import ShardPlan
from dflash_assets.resources.engines.sglang import SglangEngine
from dflash_assets.resources.manifest import StoreFault
from tests.support.generation import make_run, settings
from tests.support.s3 import open_s3

ROOT = Path(__file__).parents[2]


def main() -> None:
    """See the module."""
    folder, address, copy, first, last = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
    for pair in os.environ.get("DFLASH_TEST_BRIDGES", "").split():
        port, _, path = pair.partition("=")
        forward(socket.create_server(("127.0.0.1", int(port))), path)
    spec = json.loads((folder / "plans.json").read_text())
    plans = [ShardPlan(number, Path(path), rows, content) for number, path, rows, content in spec["shards"] if first <= number <= last]
    window = settings(stop_token_ids=tuple(spec["stops"]), rules=AnswerRules(frozenset(spec["stops"]), spec["vocab_size"], None))
    times = {"ttl": float(os.environ.get("DFLASH_TEST_TTL", "60")), "beat": float(os.environ.get("DFLASH_TEST_BEAT", "10"))}
    store = open_s3(address, copy, **times)
    store._mirror._seconds = 0.2
    try:
        with store.lock(range(first, last + 1)):
            print("began", flush=True)
            generation = make_run(
                store, plans, [SglangEngine(os.environ["DFLASH_TEST_ENGINE"])], window=window, expected_model=spec["model"]
            )  # type: ignore[arg-type]
            for outcome in generation:
                print(f"{'known' if outcome.cached else 'shard'} {outcome.shard}", flush=True)
            store.settle()
    except StoreFault as fault:
        print("refused", fault, flush=True)
        return
    finally:
        store.close()
    print("sent", generation.progress.requests_sent, flush=True)


# -- bridges ---------------------------------------------------------------------------------------------------------------


def forward(listening: socket.socket, target: str | tuple[str, int]) -> None:
    """Pass connections on to a socket file or an address, in threads."""

    def accept() -> None:
        while True:
            try:
                near, _ = listening.accept()
            except OSError:
                return
            try:
                if isinstance(target, str):
                    far = socket.socket(socket.AF_UNIX)
                    far.connect(target)
                else:
                    far = socket.create_connection(target)
            except OSError:
                near.close()
                continue
            for ends in ((near, far), (far, near)):
                threading.Thread(target=_relay, args=ends, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def _relay(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


def can_have_namespaces() -> bool:
    """Whether this process may give a child a network and a host name of its own."""
    try:
        return subprocess.run(["unshare", "--net", "--uts", "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def a_host(
    name: str, folder: Path, address: str, copy: Path, shards: range, engine: str, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Start a host, in namespaces of its own where that is allowed, else as a plain process. Killed at the end if it still runs."""
    command = [sys.executable, "-m", "tests.support.range_host", str(folder), address, str(copy), str(shards[0]), str(shards[-1])]
    variables = {**os.environ, **environment, "DFLASH_TEST_ENGINE": engine}
    listening: list[socket.socket] = []
    if can_have_namespaces():
        bridges: list[str] = []
        for url in (engine, environment["AWS_ENDPOINT_URL"]):
            host, _, port = url.removeprefix("http://").partition(":")
            path = str(Path(tempfile.mkdtemp()) / port)  # short: a socket's path has 107 bytes at most
            server = socket.socket(socket.AF_UNIX)
            server.bind(path)
            server.listen(64)
            forward(server, (host, int(port)))
            listening.append(server)
            bridges.append(f"{port}={path}")
        variables["DFLASH_TEST_BRIDGES"] = " ".join(bridges)
        command = ["unshare", "--net", "--uts", "sh", "-c", f'ip link set lo up && hostname {name} && exec "$@"', "sh", *command]
    process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
        for server in listening:
            server.close()


if __name__ == "__main__":
    main()
