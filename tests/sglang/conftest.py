"""The real SGLang server that the tests of this folder share, one a session.

Set up with tests/sglang/setup.sh. `DFLASH_SGLANG_ENV` names another environment folder than .venv-sglang.
"""

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash_assets.resources.engines.base import EngineError
from dflash_assets.resources.engines.http import HttpServer
from tests.support.sglang_contract import SglangContract

HERE = Path(__file__).parent
NAME = "Qwen/Qwen3.6-35B-A3B"
START_SECONDS = 240


@pytest.fixture(scope="session")
def environment() -> Path:
    folder = Path(os.environ.get("DFLASH_SGLANG_ENV", HERE.parent.parent / ".venv-sglang"))
    if not (folder / "model" / "config.json").is_file():
        pytest.skip(f"no SGLang environment in {folder}: run tests/sglang/setup.sh")
    return folder


@pytest.fixture(scope="session")
def url(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("sglang") / "server.log"
    command = [
        str(environment / "bin" / "python"),
        str(HERE / "serve.py"),
        "--model-path",
        str(environment / "model"),
        "--port",
        str(port),
        "--served-model-name",
        NAME,
        "--reasoning-parser",
        "qwen3",
        "--tool-call-parser",
        "qwen3_coder",
        "--max-running-requests",
        str(SglangContract.slots),
        "--max-queued-requests",
        str(SglangContract.queue),
    ]
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, cwd=log.parent)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait(process, address, log)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(process: "subprocess.Popen[bytes]", address: str, log: Path) -> None:
    """Until the server has loaded its model and answers a generation (its first one compiles and is slow)."""

    async def answers() -> bool:
        server = HttpServer(address)
        await server.open()
        try:
            await server.post("/generate", {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 1}}, 60.0)
        except EngineError:
            return False
        finally:
            await server.close()
        return True

    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        if asyncio.run(answers()):
            return
        time.sleep(1.0)
    pytest.fail(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")
